"""Triggers: when the planner of a table runs, and its decision. Pure.

    a trigger fires ──► Table.triggered_at_s ──► the tablet is read and planned ──► its verdict
                                                   │ the planner wants no more jobs
                                                   ▼
                                    Record.answered_s: closed until a trigger fires again

A trigger only starts planning; the planner decides (LinkedIn Ambry's rule). A table whose settings
have triggers without `change` is gated: its system jobs are planned only while a trigger is open,
and only from files that existed when it fired or that jobs have written since. Both conditions
depend on the store only, so a trigger survives the coordinator that received it. User requests are
not gated.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

from common.model.file import DataFile, total_bytes
from common.model.table import Table, TableSettings, TableState
from common.model.tablet import Record, TabletId
from common.primitives import BoundedMap, digest
from common.units import exact_duration, format_count
from neve import api

PERIODIC, ADMIN, CHANGE, ANALYSIS = "periodic", "admin", "change", "analysis"
REASONS_MAX = 3
"""Maximum number of reasons in a refusal."""
TABLES_MAX = 10_000
"""Tables whose decision counts are remembered."""

# ------------------------------------------------------------------------------------- The gate


def is_gated(settings: TableSettings) -> bool:
    """Return whether system jobs of a table are planned only after a trigger."""
    if not settings.triggers:
        return False
    named = set(settings.triggers) - {ANALYSIS}
    return bool(named) and CHANGE not in named


def open_trigger_s(table: Table, record: Record) -> float:
    """Return the time of the trigger that is open for a tablet, or 0 if none is open."""
    last_s = max(table.triggered_at_s, record.triggered_s)
    return last_s if last_s > record.answered_s else 0.0


def is_included(file: DataFile, triggered_at_s: float) -> bool:
    """Return whether system jobs of a gated table may use a file.

    Args:
        file: A file of the tablet.
        triggered_at_s: Result of `open_trigger_s`.
    """
    return triggered_at_s > 0 and (file.job is not None or file.added_at_s <= triggered_at_s)


def gate_sentence(settings: TableSettings) -> str:
    """Return why a file of a gated table is not planned."""
    return f"waits for a trigger of its table ({triggers_text(settings)})"


def triggers_text(settings: TableSettings) -> str:
    """Return a readable list of the triggers of a table."""
    interval = f"every {exact_duration(settings.trigger_interval_s)}"
    return ", ".join(
        f"{trigger} {interval}" if trigger == PERIODIC else trigger for trigger in settings.triggers
    )


def why_not_triggered(table: Table, trigger: str) -> str | None:
    """Return why a trigger is not allowed for a table, or None.

    A table without the setting `triggers` allows triggers of operators.
    """
    if table.state is not TableState.LIVE:
        resume = f" (`neve resume {table.name}`)" if table.state is TableState.PAUSED else ""
        return (
            f"table {table.name} is {table.state.value}: its planner runs only while it is"
            f" live{resume}"
        )
    named = tuple(name for name in table.settings.triggers if name != ANALYSIS)
    if named and trigger not in named:
        return (
            f"table {table.name} does not have the trigger {trigger}: its setting triggers is"
            f" {','.join(named)}; add the trigger there, or force a run with `neve compact"
            f" {table.name}`"
        )
    return None


# ------------------------------------------------------------------------ The trigger `analysis`


def unmeasured_share(files: Collection[DataFile]) -> float:
    """Return the fraction of a tablet's bytes that no analysis has measured, 0 to 1."""
    whole = total_bytes(files)
    new = total_bytes(file for file in files if file.measured_version is None)
    return new / whole if whole else 0.0


def wants_analysis(files: Collection[DataFile], settings: TableSettings) -> bool:
    """Return whether the trigger `analysis` fires for a tablet.

    Files that were added or written by jobs since the last analysis count as changed.

    Args:
        files: Files of the tablet.
        settings: Settings of its table.
    """
    if ANALYSIS not in settings.triggers or not total_bytes(files):
        return False
    return unmeasured_share(files) >= settings.analysis_share


# ------------------------------------------------------------------------ The trigger `periodic`


def phase_s(table: str, settings: TableSettings) -> float:
    """Return the delay of the first periodic trigger of a table, from 0 to its spread.

    Ambry uses a random delay; a hash of the id gives the same delay after every restart.

    Args:
        table: Id of the table.
        settings: Settings of the table; the spread is at most the interval.
    """
    share = int(digest([table, PERIODIC], length=13), 16) / 16**13
    return share * min(settings.trigger_spread_s, settings.trigger_interval_s)


def triggers_due(begun_s: float, now_s: float, table: str, settings: TableSettings) -> int:
    """Return the number of periodic triggers so far: one at the start and one per interval.

    Args:
        begun_s: When the service began to watch the table.
        now_s: The current time.
        table: Id of the table.
        settings: Settings of the table.
    """
    since_s = now_s - begun_s - phase_s(table, settings)
    return 0 if since_s < 0 else 1 + int(since_s // settings.trigger_interval_s)


@dataclass(slots=True)
class _Watched:
    begun_s: float
    schedule: tuple[float, float]
    done: int = 0


class PeriodicTriggers:
    """The tables whose trigger `periodic` is due.

    A table is watched from the start of the service, or from the time when it got the trigger or
    another interval or spread. Several missed triggers, for example during a pause of the table,
    fire once.
    """

    def __init__(self) -> None:
        """Create an instance that watches no tables."""
        self._watched: dict[str, _Watched] = {}

    def due(self, tables: Iterable[Table], now_s: float) -> list[Table]:
        """Return the live tables whose trigger is due; a table stays due until `done` is called.

        Args:
            tables: All tables.
            now_s: The current time; it never decreases.
        """
        periodic = {table.id: table for table in tables if PERIODIC in table.settings.triggers}
        for gone in sorted(self._watched.keys() - periodic.keys()):
            del self._watched[gone]
        return [
            table
            for table in periodic.values()
            if self._due(table, now_s) > self._watched[table.id].done
            and table.state is TableState.LIVE
        ]

    def done(self, table: Table, now_s: float) -> None:
        """Record that the trigger of a due table has fired."""
        self._watched[table.id].done = self._due(table, now_s)

    def _due(self, table: Table, now_s: float) -> int:
        settings = table.settings
        schedule = (settings.trigger_interval_s, settings.trigger_spread_s)
        watched = self._watched.get(table.id)
        if watched is None or watched.schedule != schedule:
            watched = self._watched[table.id] = _Watched(now_s, schedule)
        return triggers_due(watched.begun_s, now_s, table.id, settings)


# ------------------------------------------------------------------------- Decisions of planners


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerDecision:
    """The planner's decision on a trigger in one tablet."""

    table_name: str
    trigger: str
    triggered_at_s: float
    decided_s: float
    verdict: api.TriggerVerdict
    jobs: int = 0
    """Number of system jobs that the planner wanted."""
    files: int = 0
    """Number of their inputs."""
    reason: str = ""
    """Reason of the best job, or why there is no job."""

    @property
    def is_final(self) -> bool:
        """Whether later plans for the same trigger do not change the decision."""
        return self.verdict in {api.TriggerVerdict.ACCEPTED, api.TriggerVerdict.REFUSED}


def refusal_reason(left: Mapping[str, str]) -> str:
    """Return why a planner wanted no jobs: its reasons with file counts, most frequent first.

    Args:
        left: Path → why no job takes the file.
    """
    if not left:
        return "the tablet has no files"
    counts = Counter(left.values())
    first = sorted(counts, key=lambda why: (-counts[why], why))[:REASONS_MAX]
    parts = [f"{format_count(counts[why], 'file', 'files')}: {why}" for why in first]
    if len(counts) > len(first):
        parts.append(f"{len(counts) - len(first)} other reasons")
    return "; ".join(parts)


class TriggerDecisions:
    """The last decision of each tablet, and decision counts by table.

    Invariant: a tablet has one decision per trigger. A later plan replaces the decision only if it
    was not final, so that the first final decision is shown.
    """

    def __init__(self, tablets_max: int) -> None:
        """Create an empty registry."""
        self._decisions: BoundedMap[TabletId, TriggerDecision] = BoundedMap(tablets_max)
        self._tables: BoundedMap[str, api.TableTrigger] = BoundedMap(TABLES_MAX)
        self.counts: Counter[tuple[str, str]] = Counter()
        """Number of decisions by trigger and verdict since the start."""

    def of(self, tablet: TabletId) -> TriggerDecision | None:
        """Return the last decision of a tablet, or None."""
        return self._decisions.get(tablet)

    def put(self, tablet: TabletId, decision: TriggerDecision) -> None:
        """Store a decision, unless the tablet has a final or equal one for the same trigger."""
        before = self.of(tablet)
        again = before is not None and before.triggered_at_s == decision.triggered_at_s
        if before is not None and again and (before.is_final or _says(before) == _says(decision)):
            return
        self._decisions.put(tablet, decision)
        self.counts[decision.trigger, decision.verdict.value] += 1
        self._count(tablet.table, decision, before if again else None)

    def refused(self, table: Table, trigger: str, reason: str, now_s: float) -> None:
        """Record a trigger that was refused before planning."""
        self.counts[trigger, api.TriggerVerdict.REFUSED.value] += 1
        tally = api.TableTrigger(
            table=table.name, trigger=trigger, triggered_at_s=now_s, refusal=reason
        )
        self._tables.put(table.id, tally)

    def forget(self, tablets: Collection[TabletId], table: str) -> None:
        """Remove a dropped table and its tablets."""
        self._tables.pop(table)
        for tablet in tablets:
            self._decisions.pop(tablet)

    def of_tables(self, count: int) -> tuple[api.TableTrigger, ...]:
        """Return the counts of the most recently triggered tables, newest first."""
        tallies = [tally for _, tally in self._tables]
        return tuple(sorted(tallies, key=attrgetter("triggered_at_s"), reverse=True)[:count])

    def _count(self, table: str, new: TriggerDecision, before: TriggerDecision | None) -> None:
        tally = self._tables.get(table)
        if tally is not None and tally.triggered_at_s > new.triggered_at_s:
            return  # A later trigger, perhaps of another tablet alone, is shown.
        if tally is None or tally.triggered_at_s != new.triggered_at_s:
            tally = api.TableTrigger(
                table=new.table_name, trigger=new.trigger, triggered_at_s=new.triggered_at_s
            )
        counts = {new.verdict.value: getattr(tally, new.verdict.value) + 1}
        if before is not None:
            counts[before.verdict.value] = getattr(tally, before.verdict.value) - 1
        refusal = tally.refusal if new.verdict is api.TriggerVerdict.ACCEPTED else new.reason
        self._tables.put(table, replace(tally, refusal=refusal, **counts))


def _says(decision: TriggerDecision) -> tuple[api.TriggerVerdict, str]:
    return decision.verdict, decision.reason
