"""Triggers: when the planner of a table is asked, and what it decided. Pure.

    a trigger asks ──► Table.triggered_at_s ──► the tablet is read and planned ──► its verdict
                                                  │ it wants nothing more
                                                  ▼
                                    Record.answered_s: closed until a trigger asks again

A trigger only asks; the planner decides (LinkedIn Ambry's rule). A table that names triggers in
its settings, and not `change` among them, is gated: its system jobs are planned only while a
trigger is open, and only from files that were there when it asked, or that jobs have made since.
Both are facts of the store, so a trigger outlives the coordinator that heard it. User requests
pass every gate.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

from common.bounded_map import BoundedMap
from common.digests import digest
from common.model.file import DataFile, total_bytes
from common.model.table import Table, TableSettings, TableState
from common.model.tablet import Record, TabletId
from common.units import exact_duration, format_count
from neve import api

PERIODIC, ADMIN, CHANGE, ANALYSIS = "periodic", "admin", "change", "analysis"
REASONS_MAX = 3
"""Reasons that a refusal names."""
TABLES_MAX = 10_000
"""Tables of which it is remembered how their planner answered."""

# ------------------------------------------------------------------------------------- The gate


def is_gated(settings: TableSettings) -> bool:
    """Return whether system jobs of a table are planned only when a trigger asks."""
    if not settings.triggers:
        return False
    named = set(settings.triggers) - {ANALYSIS}
    return bool(named) and CHANGE not in named


def open_trigger_s(table: Table, record: Record) -> float:
    """Return when the trigger asked that a tablet has not come to rest for; 0: none is open."""
    return table.triggered_at_s if table.triggered_at_s > record.answered_s else 0.0


def is_included(file: DataFile, triggered_at_s: float) -> bool:
    """Return whether system jobs of a gated table may use a file.

    Args:
        file: Of the tablet.
        triggered_at_s: As `open_trigger_s` returns it.
    """
    return triggered_at_s > 0 and (file.job is not None or file.added_at_s <= triggered_at_s)


def gate_sentence(settings: TableSettings) -> str:
    """Return why a file of a gated table is not planned."""
    return f"waits for a trigger of its table ({triggers_text(settings)})"


def triggers_text(settings: TableSettings) -> str:
    """Return the triggers of a table for people."""
    every = f"every {exact_duration(settings.trigger_interval_s)}"
    return ", ".join(
        f"{trigger} {every}" if trigger == PERIODIC else trigger for trigger in settings.triggers
    )


def why_not_triggered(table: Table, trigger: str) -> str | None:
    """Return why a trigger may not ask about a table, or None.

    A table without the setting `triggers` may be asked about by operators.
    """
    if table.state is not TableState.LIVE:
        resume = f" (`neve resume {table.name}`)" if table.state is TableState.PAUSED else ""
        return (
            f"table {table.name} is {table.state.value}: its planner runs only while it is"
            f" live{resume}"
        )
    named = tuple(each for each in table.settings.triggers if each != ANALYSIS)
    if named and trigger not in named:
        return (
            f"table {table.name} does not have the trigger {trigger}: its setting triggers is"
            f" {','.join(named)}; add the trigger there, or force a run with `neve compact"
            f" {table.name}`"
        )
    return None


# ------------------------------------------------------------------------ When `analysis` asks


def unmeasured_share(files: Collection[DataFile]) -> float:
    """Return the share of the bytes of a tablet that no analysis has looked at, 0 to 1."""
    whole = total_bytes(files)
    new = total_bytes(file for file in files if file.measured_version is None)
    return new / whole if whole else 0.0


def wants_analysis(files: Collection[DataFile], settings: TableSettings) -> bool:
    """Return whether the trigger `analysis` asks about a tablet.

    Files that have come since the last analysis, or that jobs have written since, count as changed.

    Args:
        files: Of the tablet.
        settings: Of its table.
    """
    if ANALYSIS not in settings.triggers or not total_bytes(files):
        return False
    return unmeasured_share(files) >= settings.analysis_share


# ------------------------------------------------------------------------ When `periodic` asks


def phase_s(table: str, settings: TableSettings) -> float:
    """Return how late the first periodic trigger of a table is: from 0 to its spread.

    Ambry draws this by chance; a hash of the id is the same after every restart.

    Args:
        table: Id of the table.
        settings: Of the table; the spread counts up to the interval.
    """
    share = int(digest([table, PERIODIC], length=13), 16) / 16**13
    return share * min(settings.trigger_spread_s, settings.trigger_interval_s)


def triggers_due(begun_s: float, now_s: float, table: str, settings: TableSettings) -> int:
    """Return how many periodic triggers are due by now: at the start, and after each interval.

    Args:
        begun_s: When the service began to watch the table.
        now_s: The time now.
        table: Id of the table.
        settings: Of the table.
    """
    since_s = now_s - begun_s - phase_s(table, settings)
    return 0 if since_s < 0 else 1 + int(since_s // settings.trigger_interval_s)


@dataclass(slots=True)
class _Watched:
    begun_s: float
    schedule: tuple[float, float]
    done: int = 0


class PeriodicTriggers:
    """Which tables the trigger `periodic` has to ask about now.

    A table is watched from the start of the service, or since it has the trigger or another
    interval. Triggers that were missed, as while a table was paused, are one.
    """

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._watched: dict[str, _Watched] = {}

    def due(self, tables: Iterable[Table], now_s: float) -> list[Table]:
        """Return the live tables whose planner is to be asked now; each until `done` is called.

        Args:
            tables: All tables.
            now_s: The time now; it never goes back.
        """
        periodic = {each.id: each for each in tables if PERIODIC in each.settings.triggers}
        for gone in sorted(self._watched.keys() - periodic.keys()):
            del self._watched[gone]
        return [
            table
            for table in periodic.values()
            if self._due(table, now_s) > self._watched[table.id].done
            and table.state is TableState.LIVE
        ]

    def done(self, table: Table, now_s: float) -> None:
        """Note that the planner was asked about a table that was due."""
        self._watched[table.id].done = self._due(table, now_s)

    def _due(self, table: Table, now_s: float) -> int:
        settings = table.settings
        schedule = (settings.trigger_interval_s, settings.trigger_spread_s)
        known = self._watched.get(table.id)
        if known is None or known.schedule != schedule:
            known = self._watched[table.id] = _Watched(now_s, schedule)
        return triggers_due(known.begun_s, now_s, table.id, settings)


# ---------------------------------------------------------------------- What the planner decided


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerDecision:
    """What became of a trigger in one tablet."""

    table_name: str
    trigger: str
    triggered_at_s: float
    decided_s: float
    verdict: api.TriggerVerdict
    jobs: int = 0
    """System jobs that the planner wanted."""
    files: int = 0
    """Their inputs."""
    reason: str = ""
    """Of the best job, or why there is none."""

    @property
    def is_final(self) -> bool:
        """Whether a later plan for the same trigger changes nothing."""
        return self.verdict in {api.TriggerVerdict.ACCEPTED, api.TriggerVerdict.REFUSED}


def refusal_reason(left: Mapping[str, str]) -> str:
    """Return why a planner wanted nothing: its reasons with their files, the most frequent first.

    Args:
        left: Path → why no job takes it.
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
    """The last decision of each tablet, and their counts by table.

    Always true: a tablet has one decision per trigger; a later plan replaces it only if it was
    not final, so that the first answer is what is shown.
    """

    def __init__(self, tablets_max: int) -> None:
        """Know of none."""
        self._decisions: BoundedMap[TabletId, TriggerDecision] = BoundedMap(tablets_max)
        self._tables: BoundedMap[str, api.TableTrigger] = BoundedMap(TABLES_MAX)
        self.counts: Counter[tuple[str, str]] = Counter()
        """Decisions by trigger and verdict since the start."""

    def of(self, tablet: TabletId) -> TriggerDecision | None:
        """Return the last decision of a tablet, or None."""
        return self._decisions.get(tablet)

    def put(self, tablet: TabletId, decision: TriggerDecision) -> None:
        """Note what was decided for a tablet, unless it has been decided for this trigger."""
        before = self.of(tablet)
        again = before is not None and before.triggered_at_s == decision.triggered_at_s
        if before is not None and again and (before.is_final or _says(before) == _says(decision)):
            return
        self._decisions.put(tablet, decision)
        self.counts[decision.trigger, decision.verdict.value] += 1
        self._count(tablet.table, decision, before if again else None)

    def refused(self, table: Table, trigger: str, reason: str, now_s: float) -> None:
        """Note that a trigger was refused before any planner was asked."""
        self.counts[trigger, api.TriggerVerdict.REFUSED.value] += 1
        tally = api.TableTrigger(
            table=table.name, trigger=trigger, triggered_at_s=now_s, refusal=reason
        )
        self._tables.put(table.id, tally)

    def forget(self, tablets: Collection[TabletId], table: str) -> None:
        """Forget a table that is gone."""
        self._tables.pop(table)
        for tablet in tablets:
            self._decisions.pop(tablet)

    def of_tables(self, count: int) -> tuple[api.TableTrigger, ...]:
        """Return the counts of the tables that were asked about last, newest first."""
        every = [each for _, each in self._tables]
        return tuple(sorted(every, key=attrgetter("triggered_at_s"), reverse=True)[:count])

    def _count(self, table: str, new: TriggerDecision, before: TriggerDecision | None) -> None:
        known = self._tables.get(table)
        if known is None or known.triggered_at_s != new.triggered_at_s:
            known = api.TableTrigger(
                table=new.table_name, trigger=new.trigger, triggered_at_s=new.triggered_at_s
            )
        counts = {new.verdict.value: getattr(known, new.verdict.value) + 1}
        if before is not None:
            counts[before.verdict.value] = getattr(known, before.verdict.value) - 1
        refusal = known.refusal if new.verdict is api.TriggerVerdict.ACCEPTED else new.reason
        self._tables.put(table, replace(known, refusal=refusal, **counts))


def _says(decision: TriggerDecision) -> tuple[api.TriggerVerdict, str]:
    return decision.verdict, decision.reason
