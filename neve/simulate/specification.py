"""Turns a TOML document into the values of a simulation; errors name the invalid key.

Pure, with two exceptions: plug-ins are loaded by name, and files that the document names are read
by a function from the caller. `EXAMPLE` is a commented document, in `templates/`.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from typing import Any

from common.config import checked_groups
from common.documents import read_list, read_object
from common.errors import ConfigError, RequestError
from common.model.file import DataFile
from common.model.group import Group
from common.model.table import DNS_LABEL, TableSettings
from common.plugins import DEFAULT_PLANNER, TRACKERS, load_planner, load_tracker, request_errors
from common.settings import AutoscalerSettings, CoordinatorSettings
from common.spi.controller import TrackerPlugin
from common.spi.planner import Planner, check_options, check_table, with_derived
from neve.setting_values import read_settings
from neve.simulate.recording import Recording, read_recording, start_files
from neve.simulate.rows import KeyPopulation
from neve.simulate.sections import (
    REQUESTS_MAX,
    ControlRule,
    FailureRule,
    RequestRule,
    Section,
    checked_total,
    merged_documents,
    read_control,
    read_failures,
    read_requests,
)

DAY_S = 86_400.0
DAYS_MAX = 400
TABLETS_MAX = 100_000
FILES_MAX = 20_000_000
"""Maximum number of files that arrive in one run."""
SAMPLES_MAX = 5_000
TABLES_MAX = 100
GROUPS_MAX = 20
COMPACTORS_MAX = 1_000
BURSTS_MAX = 1_000
VARIANTS_MAX = 16
QUEUE_COUNT_MAX = CoordinatorSettings().queue_count_max
BYTES_MAX = 1 << 60
EXAMPLE = resources.files("neve.simulate").joinpath("templates/example.toml").read_text("utf-8")
"""The specification that `neve simulate --example` prints."""
BEGIN_S = 1_767_225_600.0
"""1 January 2026, 00:00 UTC, so that runs do not depend on the current time."""

ReadFile = Callable[[str], object]
"""Returns the JSON document in a file, by its name in the specification."""

# ------------------------------------------------------------------------------------------- Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """A period with a multiple of the usual arrivals."""

    at_s: float
    length_s: float
    times: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalRule:
    """How files arrive in a table. One flush brings `files` files to one tablet."""

    flushes_s: float
    """Flushes of the whole table per second, averaged over a day."""
    files: int = 1
    size_bytes: int = 8 * 1024**2
    """Mean size of a file."""
    size_spread: float = 0.0
    """Standard deviation of the logarithm of the size; 0: all sizes are equal."""
    regular: bool = False
    """Whether flushes arrive at equal intervals, tablet after tablet; otherwise at random."""
    updates: float = 0.0
    """Fraction of rows with keys that the tablet may already hold."""
    deletes: float = 0.0
    """Fraction of rows that are tombstones."""
    late: float = 0.0
    """Fraction of files with late rows."""
    late_max_s: float = 86_400.0
    """Maximum delay of late rows."""
    daily: float = 0.0
    """Amplitude of the daily curve: 0.5 means 0.5 times the mean at night and 1.5 times by day."""
    peak_hour: float = 14.0
    bursts: tuple[Burst, ...] = ()
    recording: Recording | None = None
    """Recorded arrivals of a service, replayed repeatedly. All other fields except `updates` and
    `deletes` are then ignored.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRule:
    """A table: its tablets, arrivals and planner."""

    name: str
    tablets: int
    keyed: bool
    arrivals: ArrivalRule
    tablet_skew: float = 0.0
    """Exponent of the Zipf distribution of arrivals over tablets; 0: uniform."""
    population: KeyPopulation = field(default_factory=lambda: KeyPopulation(1))
    row_bytes: int = 100
    initial_bytes: int = 0
    """Size of one initial file per tablet; 0: none."""
    files: tuple[tuple[int, DataFile], ...] = ()
    """Initial files, each with the number of its tablet."""
    planner_name: str = DEFAULT_PLANNER
    planner: Planner = field(repr=False)
    options: Mapping[str, object] = field(default_factory=dict)
    settings: TableSettings = field(default_factory=TableSettings)
    tracker: tuple[str, TrackerPlugin] | None = None
    """Name and plug-in; None: the backlog is measured by the planned jobs."""
    requests: RequestRule | None = None
    """None: no user requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRule:
    """A compaction group and its compactors."""

    group: Group
    slots: int = 4
    count_min: int = 1
    count_max: int = 1
    slot_bytes_s: float = 50e6
    """Input bytes that one slot rewrites per second without other limits."""
    start_s: float = 30.0
    """Time from the start of a compactor to its first heartbeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRule:
    """The simulated cluster."""

    groups: tuple[GroupRule, ...]
    job_overhead_s: float = 0.5
    """Fixed time of each job for assignment, start and commit."""
    volumes: Mapping[str, float] = field(default_factory=dict)
    """Volume → total bytes per second of its jobs; a missing volume has no limit."""
    queue_count_max: int = QUEUE_COUNT_MAX
    scaling: AutoscalerSettings = field(default_factory=AutoscalerSettings)
    failures: FailureRule | None = None
    """None: no failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Specification:
    """One run."""

    variant: str
    days: float
    seed: int
    sample_s: float
    drain_max_s: float
    """Maximum time after the arrivals to finish all work."""
    tables: tuple[TableRule, ...]
    cluster: ClusterRule
    control: ControlRule | None = None
    """None: no controller; jobs may use all slots and bytes."""
    begin_s: float = BEGIN_S
    """Start of the run, in seconds since the epoch; a midnight."""

    @property
    def length_s(self) -> float:
        """Length of the arrivals, in seconds."""
        return self.days * DAY_S


# ----------------------------------------------------------------------------------------- Variants


def read_toml(text: str, where: str) -> dict[str, Any]:
    """Return a decoded TOML document.

    Args:
        text: The document.
        where: What it is, for the message.

    Raises:
        RequestError: The text is not TOML.
    """
    try:
        return tomllib.loads(text)
    # RecursionError: nesting too deep. ValueError also covers numbers that are too long.
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{where} is not TOML: {error}") from error


def with_basics(document: dict[str, Any], **basics: float | None) -> dict[str, Any]:
    """Return a document with other values in its section `simulation`; None: as it is."""
    changed = {name: value for name, value in basics.items() if value is not None}
    before = document.get("simulation", {})
    if not changed or not isinstance(before, dict):
        return document  # The parser rejects a value that is not a table.
    return {**document, "simulation": {**before, **changed}}


def read_specifications(
    document: object,
    read: ReadFile,
    planners: Sequence[str] = (),
    controllers: Sequence[str] = (),
) -> list[Specification]:
    """Read the runs of a document, one per variant.

    Args:
        document: The decoded TOML or JSON document.
        read: Returns the JSON in a file that the document names.
        planners: Names of planners; each is a variant. They replace the document's variants.
        controllers: Names of controllers; each is combined with each planner.

    Raises:
        RequestError: Names the key, its value and what was expected.
        PluginError: A plug-in cannot be loaded.
    """
    body = read_object(document, "the specification")
    variants = read_list(body.pop("variant", None) or [], "variant")
    if planners or controllers:
        variants = _named_variants(planners, controllers)
    if len(variants) > VARIANTS_MAX:
        raise RequestError(f"there are {len(variants)} variants, expected at most {VARIANTS_MAX}")
    specifications = [
        _read(
            _of_variant(body, variant, f"variant[{at}]"),
            read,
            str(variant.get("name", f"{at + 1}")),
        )
        for at, variant in enumerate(
            read_object(variant, f"variant[{at}]") for at, variant in enumerate(variants)
        )
    ] or [_read(body, read, "")]
    names = [specification.variant for specification in specifications]
    if len(set(names)) < len(names):
        raise RequestError(f"variants are named {', '.join(names)}, expected different names")
    return specifications


def _named_variants(planners: Sequence[str], controllers: Sequence[str]) -> list[dict[str, str]]:
    """Return a variant for each combination of planner and controller."""
    chosen = [
        {"planner": planner, "controller": controller}
        for planner in planners or [""]
        for controller in controllers or [""]
    ]
    named = [{kind: name for kind, name in choice.items() if name} for choice in chosen]
    return [{"name": ", ".join(variant.values()), **variant} for variant in named]


def _of_variant(body: Mapping[str, Any], variant: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the document with the changes of a variant."""
    over = Section(variant, where)
    over.raw("name")
    controller = over.raw("controller")
    planner, options, settings = over.raw("planner"), over.table("options"), over.table("settings")
    by_table = over.table("table")
    sections = ("simulation", "cluster", "control")
    changed = {name: over.table(name) for name in sections if name in over}
    over.close()
    tables = [dict(read_object(table, "table")) for table in read_list(body.get("table"), "table")]
    if unknown := sorted(by_table.keys() - {str(table.get("name")) for table in tables}):
        raise RequestError(f"{where}.table.{unknown[0]} is the name of no table")
    for at, table in enumerate(tables):
        if planner is not None and planner != table.get("planner", DEFAULT_PLANNER):
            # Options are valid only for the planner that they were written for.
            table = {name: value for name, value in table.items() if name != "options"}
            table.pop("tracker", None)
            table["planner"] = planner
        table = merged_documents(table, {"options": options, "settings": settings})
        tables[at] = merged_documents(table, by_table.get(str(table.get("name")), {}))
    if controller is not None:
        changed["control"] = {"controller": controller, **changed.get("control", {})}
        before = read_object(body.get("control") or {}, "control")
        if before.get("controller") != controller:
            body = {**body, "control": {k: v for k, v in before.items() if k != "options"}}
    return merged_documents({**body, "table": tables}, changed)


# ------------------------------------------------------------------------------------------ Reading


def _read(body: Mapping[str, Any], read: ReadFile, variant: str) -> Specification:
    whole = Section(body, "")
    basic = whole.section("simulation")
    cluster = _cluster(whole.section("cluster"))
    days = basic.number("days", 1.0, least=1e-4, most=DAYS_MAX)
    most_s = days * DAY_S
    specification = Specification(
        variant=variant,
        days=days,
        seed=basic.count("seed", 1, least=0, most=(1 << 63) - 1),
        sample_s=basic.duration_s(
            "sample", max(1.0, most_s / 200), least=1.0, most=max(1.0, most_s)
        ),
        drain_max_s=basic.duration_s("drain_max", DAY_S, least=0.0, most=DAYS_MAX * DAY_S),
        tables=tuple(
            _table(section, read, most_s) for section in whole.sections("table", most=TABLES_MAX)
        ),
        cluster=cluster,
        control=_control(whole, cluster),
        begin_s=basic.number("begin_s", BEGIN_S, least=0.0, most=1e11),
    )
    basic.close()
    whole.close()
    _check_together(specification)
    return specification


def _control(whole: Section, cluster: ClusterRule) -> ControlRule | None:
    if "control" not in whole:
        return None
    slots = {group.group.name: group.count_max * group.slots for group in cluster.groups}
    return read_control(whole.section("control"), slots)


def _check_together(specification: Specification) -> None:
    tables = specification.tables
    if not tables:
        raise RequestError("table is missing, expected at least one [[table]]")
    names = [table.name for table in tables]
    if len(set(names)) < len(names):
        raise RequestError(f"tables are named {', '.join(names)}, expected different names")
    advice = "simulate fewer tablets: they behave alike"
    checked_total("tablets", sum(table.tablets for table in tables), TABLETS_MAX, advice)
    arriving = sum(files_arriving(table.arrivals, specification.length_s) for table in tables)
    checked_total("files would arrive", arriving, FILES_MAX, "simulate fewer days or tablets")
    requests = sum(
        specification.length_s / table.requests.every_s for table in tables if table.requests
    )
    checked_total("requests would be made", requests, REQUESTS_MAX, "raise table.requests.every")
    samples = specification.length_s / specification.sample_s
    checked_total("samples would be taken", samples, SAMPLES_MAX, "raise simulation.sample")


def files_arriving(rule: ArrivalRule, length_s: float) -> float:
    """Return the expected number of files that arrive in a table in `length_s` seconds."""
    if rule.recording is not None:
        return len(rule.recording.arrivals) * length_s / rule.recording.length_s
    extra_s = sum((burst.times - 1) * min(burst.length_s, length_s) for burst in rule.bursts)
    return rule.flushes_s * rule.files * (length_s + extra_s)


def _table(section: Section, read: ReadFile, length_s: float) -> TableRule:
    name = section.text("name")
    if not DNS_LABEL.fullmatch(name):
        raise RequestError(
            f"{section.key_path('name')} is {name!r:.100}, expected a name such as events"
        )
    keyed = section.switch("keyed", default=True)
    listed = section.raw("files")
    files, tablets_listed = (
        ((), 1)
        if listed is None
        else start_files(_content(listed, read), section.key_path("files"))
    )
    row_bytes = section.size_bytes("row_bytes", 100, least=1, most=1 << 30)
    initial = section.size_bytes("initial", 0, least=0, most=BYTES_MAX)
    tablets = section.count("tablets", tablets_listed, least=1, most=TABLETS_MAX)
    rows = max(1, initial // row_bytes)
    population = KeyPopulation(
        keys=section.count("keys", rows if initial else 1_000_000, least=1, most=1 << 50),
        skew=section.number("key_skew", 0.0, least=0.0, most=4.0),
    )
    planned = _planned(section, keyed=keyed)
    table = TableRule(
        name=name,
        tablets=max(tablets, tablets_listed),
        keyed=keyed,
        tablet_skew=section.number("tablet_skew", 0.0, least=0.0, most=4.0),
        population=population,
        row_bytes=row_bytes,
        initial_bytes=initial,
        files=files,
        arrivals=_arrivals(section.section("arrivals"), read, tablets, length_s, keyed=keyed),
        requests=read_requests(section.section("requests")) if "requests" in section else None,
        **planned,
    )
    section.close()
    return table


def _planned(section: Section, *, keyed: bool) -> dict[str, Any]:
    """Read the planner of a table, its options, the settings and the tracker."""
    name = section.text("planner", DEFAULT_PLANNER)
    with request_errors(f"{section.key_path('planner')}: "):
        planner = load_planner(name)
    names = getattr(planner, "option_names", None)
    written, over = section.table("settings"), section.table("options")
    try:
        settings, options = read_settings(written, names, over)
        check_options(name, planner, options)
        check_table(name, planner, keyed=keyed, timed=True)
        settings = with_derived(name, planner, options, settings)
    except (ConfigError, RequestError) as error:
        raise RequestError(f"{section.where}: {error}") from error
    if keyed and settings.ttl_s is not None:
        raise RequestError(
            f"{section.key_path('settings')}.ttl is simulated only for tables without a key, "
            "expected keyed = false or no ttl"
        )
    tracker = section.text("tracker", name if name in TRACKERS.names() else "planned jobs")
    plugin = None
    if tracker != "planned jobs":
        with request_errors(f"{section.key_path('tracker')}: "):
            plugin = (tracker, load_tracker(tracker))
    return {
        "planner_name": name,
        "planner": planner,
        "options": options,
        "settings": settings,
        "tracker": plugin,
    }


def _arrivals(
    section: Section, read: ReadFile, tablets: int, length_s: float, *, keyed: bool
) -> ArrivalRule:
    updates = section.number("updates", 0.0, least=0.0, most=1.0)
    deletes = section.number("deletes", 0.0, least=0.0, most=1.0)
    if updates + deletes > 1.0:
        together = f"{updates:g} + {deletes:g}"
        raise RequestError(f"{section.where}: updates + deletes is {together}, expected at most 1")
    if not keyed and (updates or deletes):
        raise RequestError(
            f"{section.where}: updates and deletes need a key, expected keyed = true or neither"
        )
    recorded = section.raw("recorded")
    if recorded is not None:
        where = section.key_path("recorded")
        recording = read_recording(_content(recorded, read), where)
        section.close()
        return ArrivalRule(flushes_s=0.0, updates=updates, deletes=deletes, recording=recording)
    files = section.count("files", 1, least=1, most=10_000)
    rule = ArrivalRule(
        flushes_s=_flushes_s(section, files, tablets),
        files=files,
        size_bytes=section.size_bytes("size", 8 * 1024**2, least=1, most=1 << 40),
        size_spread=section.number("size_spread", 0.0, least=0.0, most=3.0),
        regular=section.switch("regular", default=False),
        updates=updates,
        deletes=deletes,
        late=section.number("late", 0.0, least=0.0, most=1.0),
        late_max_s=section.duration_s("late_max", DAY_S, least=1.0, most=DAYS_MAX * DAY_S),
        daily=section.number("daily", 0.0, least=0.0, most=1.0),
        peak_hour=section.number("peak_hour", 14.0, least=0.0, most=24.0),
        bursts=tuple(
            _burst(burst, length_s) for burst in section.sections("burst", most=BURSTS_MAX)
        ),
    )
    section.close()
    return rule


def _content(content: object, read: ReadFile) -> object:
    """Return the document in a named file, or an inline document."""
    return read(content) if isinstance(content, str) else content


def _flushes_s(section: Section, files: int, tablets: int) -> float:
    """Return flushes per second of the table, from an interval per tablet or from a file rate."""
    if "files_per_s" in section and "every" in section:
        raise RequestError(f"{section.where} has every and files_per_s, expected one of them")
    rate = section.number("files_per_s", 0.0, least=0.0, most=1e6)
    every_s = section.duration_s("every", 60.0, least=0.001, most=DAYS_MAX * DAY_S)
    return rate / files if rate else tablets / every_s


def _burst(section: Section, length_s: float) -> Burst:
    burst = Burst(
        at_s=section.duration_s("at", 0.0, least=0.0, most=DAYS_MAX * DAY_S),
        length_s=section.duration_s("for", min(3600.0, length_s), least=1.0, most=DAYS_MAX * DAY_S),
        times=section.number("times", 2.0, least=0.0, most=10_000),
    )
    section.close()
    return burst


def _cluster(section: Section) -> ClusterRule:
    groups = [_group(group) for group in section.sections("group", most=GROUPS_MAX)]
    listed = tuple(rule.group for rule in groups) or (Group(name="default"),)
    try:
        # Smallest size limit first, the group without a limit last, as in a service.
        order = checked_groups("cluster", listed)
    except ConfigError as error:
        raise RequestError(str(error)) from error
    by_name = {rule.group.name: rule for rule in groups or [GroupRule(group=listed[0])]}
    volumes = section.section("volumes")
    cluster = ClusterRule(
        groups=tuple(replace(by_name[group.name], group=group) for group in order),
        job_overhead_s=section.duration_s("job_overhead", 0.5, least=0.001, most=3600.0),
        volumes={
            name: float(volumes.size_bytes(name, 0, least=1, most=BYTES_MAX))
            for name in volumes.names()
        },
        queue_count_max=section.count("queue_jobs", QUEUE_COUNT_MAX, least=1, most=10_000_000),
        scaling=_scaling(section.section("autoscaler")),
        failures=read_failures(section.section("failures")) if "failures" in section else None,
    )
    volumes.close()
    section.close()
    return cluster


def _group(section: Section) -> GroupRule:
    name = section.text("name", "default")
    if not DNS_LABEL.fullmatch(name):
        raise RequestError(
            f"{section.key_path('name')} is {name!r:.100}, expected a name such as large"
        )
    max_bytes = section.size_bytes("max_size", 0, least=0, most=BYTES_MAX)
    counts = section.raw("compactors")
    bounds = Section(
        {"min": counts, "max": counts} if isinstance(counts, int) else counts,
        section.key_path("compactors"),
    )
    count_max = bounds.count("max", 1, least=1, most=COMPACTORS_MAX)
    rule = GroupRule(
        group=Group(name=name, max_bytes=max_bytes or None),
        slots=section.count("slots", 4, least=1, most=1_000),
        count_min=bounds.count("min", min(1, count_max), least=0, most=count_max),
        count_max=count_max,
        slot_bytes_s=float(section.size_bytes("slot_bytes_s", 50_000_000, least=1, most=BYTES_MAX)),
        start_s=section.duration_s("start", 30.0, least=0.0, most=DAY_S),
    )
    bounds.close()
    section.close()
    return rule


def _scaling(section: Section) -> AutoscalerSettings:
    """Read the settings that the simulation uses, each under its name without the unit."""
    default = AutoscalerSettings()
    least = {"drain_target_s": 1.0}
    most = {"drain_target_s": 30 * DAY_S}
    names = [entry.name for entry in fields(default) if entry.name != "start_timeout_s"]
    settings = AutoscalerSettings(**{
        name: section.duration_s(
            name.removesuffix("_s"),
            getattr(default, name),
            least=least.get(name, 0.0),
            most=most.get(name, DAY_S),
        )
        for name in names
    })  # fmt: skip
    section.close()
    return settings
