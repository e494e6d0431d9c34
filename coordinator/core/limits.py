"""Every bound and patience of the core, as one frozen value.

What an operator may set comes from `common.settings`; the rest are bounds that keep
memory and turns small, with defaults that nobody should need to change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.model.job import AGEING_PER_S
from common.settings import CoordinatorSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds and patience. A pause doubles from its base up to `backoff_max_s`."""

    queue_bytes_max: int = 64 * 1024**2
    queue_jobs_max: int = 200_000
    ageing_per_s: float = AGEING_PER_S
    running_jobs_max: int = 10_000
    """Jobs of one group under way at a time."""
    running_input_bytes_max: int = 1024**5
    """Input bytes of all jobs of one group under way; a larger job runs alone."""
    urgent_slots: Mapping[str, int] = field(default_factory=dict)
    """Slots of a group that only urgent jobs get; of one that is not named: none."""
    volume_running_max: int = 0
    """Jobs of one volume under way at a time; 0: no limit."""
    volume_weight_max: int = 0
    """Of these, jobs of one weight (`queue.admission.job_weight`); 0: no limit."""

    silence_max_s: float = 30.0
    """A compactor unheard of for so long is taken for dead."""
    stall_max_s: float = 5.0
    """Turns further apart than this: the coordinator stood still, and no compactor was silent."""
    unlisted_beats_max: int = 3
    """Heartbeats in a row that do not list an attempt before its answer counts as lost."""
    unlisted_max_s: float = 5.0
    """And at least so long, so that repeated heartbeats do not end an attempt."""
    adopt_grace_max_s: float = 20.0
    """How long an attempt that only the store knows has to be listed by a compactor."""
    doubt_max_s: float = 6.0
    """When a reservation whose fate is unknown is released."""
    release_retry_s: float = 5.0
    """How long a release may stay without an answer before it is requested again."""
    take_wait_max_s: float = 120.0
    """How long a take may wait before it is answered with nothing."""

    backoff_base_s: float = 2.0
    backoff_max_s: float = 300.0
    cancel_pause_s: float = 300.0
    """How long the inputs of a job that was taken back are left alone."""
    refusal_base_s: float = 0.05
    """First pause after a second refusal of one job; the first costs none."""
    refusal_max_s: float = 10.0
    quarantine_failures: int = 5
    class_failures: int = 3
    """Failures of one table with one error class, over different inputs, that pause the table."""

    deferral_max_s: float = 300.0
    overload_after_s: float = 600.0
    """A group whose queue has been full for so long gets more work than it does."""
    drained_fraction: float = 0.5
    """Deferred tablets are planned again when a queue is emptier than this."""
    replans_per_turn_max: int = 64
    """Tablets planned again because time passed or room came, in one turn."""

    deferrals_max: int = 200_000
    """Per group; what goes beyond is found again by the full scan."""
    last_plans_max: int = 100_000
    """Tablets of which the last plan is remembered, for `explain`."""
    settled_max: int = 20_000
    """Attempts that are over, remembered so that stragglers are recognised."""
    story_entries_max: int = 64
    """Entries of one tablet's story."""
    story_tablets_max: int = 100_000
    """Tablets that have a story."""
    story_bytes_max: int = 64 * 1024**2
    """Memory of all stories; the tablet to which nothing has happened longest leaves first."""
    failures_max: int = 50_000
    """Inputs, tables and compactors with failures that are remembered."""
    group_limit_bytes_s: int = 0
    volume_limit_bytes_s: int = 0
    volume_least_bytes_s: int = 0
    volume_latency_s: float = 0.02

    takes_max: int = 10_000
    """Takes of one group that wait at a time."""
    compactors_max: int = 10_000

    @classmethod
    def of(
        cls,
        settings: CoordinatorSettings,
        *,
        beat_interval_s: float = 2.0,
        urgent_slots: Mapping[str, int] | None = None,
    ) -> "Limits":
        """Return the limits that an operator's settings ask for.

        Args:
            settings: The operator's.
            beat_interval_s: How often compactors beat; patience is counted in beats.
            urgent_slots: Slots of each group that only urgent jobs get; None: there are none.
        """
        patience_s = settings.lost_answer_beats * beat_interval_s
        return cls(
            queue_bytes_max=settings.queue_bytes_max,
            queue_jobs_max=settings.queue_count_max,
            ageing_per_s=settings.ageing_per_s,
            running_jobs_max=settings.running_max,
            running_input_bytes_max=settings.running_bytes_max,
            urgent_slots=dict(urgent_slots or {}),
            volume_running_max=settings.volume_running_max,
            volume_weight_max=settings.volume_weight_max,
            silence_max_s=settings.silence_max_s,
            stall_max_s=max(5.0, 4 * settings.tick_s),
            unlisted_beats_max=settings.lost_answer_beats,
            unlisted_max_s=max(0.0, patience_s - beat_interval_s / 2),
            adopt_grace_max_s=settings.adopt_grace_s,
            doubt_max_s=patience_s,
            backoff_base_s=settings.backoff_base_s,
            backoff_max_s=settings.backoff_max_s,
            cancel_pause_s=settings.backoff_max_s,
            quarantine_failures=settings.quarantine_failures,
            deferral_max_s=settings.deferral_max_s,
            overload_after_s=settings.overload_after_s,
            group_limit_bytes_s=settings.group_limit_bytes_s,
            volume_limit_bytes_s=settings.volume_limit_bytes_s,
            volume_least_bytes_s=settings.volume_least_bytes_s,
            volume_latency_s=settings.volume_latency_s,
        )
