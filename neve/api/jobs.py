"""Running jobs, finished attempts, and their daily sums."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A running job."""

    id: str
    attempt: str
    table: str
    tablet: str
    kind: str
    group: str
    compactor: str
    inputs: int
    input_bytes: int
    since_s: float
    state: str = ""
    fraction: float = 0.0
    reason: str = ""
    throttled: bool = False
    """Whether the job recently had to wait for its grant."""
    granted_bytes_s: float | None = None
    """Grant of the job; None: there is no limit."""
    moved_bytes: int = 0
    """Bytes read and written so far."""
    waited_s: float = 0.0
    quiet_s: float = 0.0
    """Seconds since the job last made progress."""
    files: tuple[str, ...] = ()
    """Paths of its inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A finished attempt of the history."""

    attempt: str
    job: str
    tablet: str
    kind: str
    end: str
    group: str
    compactor: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bytes_in: int
    bytes_out: int
    rows_in: int
    rows_out: int
    started_s: float
    ended_s: float
    reason: str = ""
    cause: str = ""
    superseded: int = 0
    """Rows that were dropped because their key has a newer row."""
    tombstones_dropped: int = 0
    expired_dropped: int = 0
    """Rows that were dropped because they had expired."""
    expected_bytes: int = 0
    """Estimate of `bytes_out`. 0 together with `expected_files`: there is no estimate."""
    expected_files: int = 0
    """Estimate of the number of outputs."""
    expected_s: float = 0.0
    """Estimate of the time from start to end; 0: unknown."""
    expected_gain: int = 0
    """Estimate of `gain`."""
    gain: int = 0
    """Decrease of the read amplification: of the largest number of files that may hold the same
    key, among inputs and outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDay:
    """Sums over the attempts of a table that ended on one day, in UTC."""

    day: str
    """Such as `2026-11-28`."""
    jobs: int = 0
    """Attempts that committed; the following sums are theirs."""
    files_in: int = 0
    files_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    compactor_s: float = 0.0
    """Time from start to end."""
    rows_in: int = 0
    rows_dropped: int = 0
    """Rows that were replaced, deleted or expired."""
    measured_jobs: int = 0
    """Rewrites whose effect on reads is known."""
    files_saved: int = 0
    """Sum over these rewrites: by how many files a read of one key opens fewer."""
    failed: int = 0
    """Attempts that failed."""
    released: int = 0
    """Attempts that ended otherwise without a commit: cancelled, drained or lost."""
    wasted_s: float = 0.0
    """Time from start to end of the attempts that did not commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDays:
    """Daily sums of a table, and the time that they cover."""

    table: str
    now_s: float
    since_s: float
    """End of the first attempt that is counted; 0: none is."""
    days: tuple[TableDay, ...]
    """Days with attempts, in ascending order."""
    hour_price: float = 0.0
    """Price of an hour of a compactor, from the settings; 0: none is set."""
    currency: str = ""
    slots: int = 1
    """Jobs that a compactor runs at once, from the settings; an hour of a job costs this part."""
