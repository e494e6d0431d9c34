"""The unified planner: levels of density, merged where enough files of a level overlap.

This is Cassandra's unified compaction strategy (CEP-26, and `UnifiedCompactionStrategy.md` in its
source). It has size-tiered and leveled compaction as special cases. Each level has a scaling
parameter W, written `T4` (W = 2), `L10` (W = -8) or `N` (W = 0):

    fan-out f     2 + W if W >= 0, else 2 - W
    threshold t   f if W >= 0 (tiered), else 2 (leveled)
    density       bytes of a file / share of the tablet that its key range covers
    level         0 below base * f0, 1 below base * f0 * f1, and so on
    base          flush_size * (1 - 0.9 / f0)

A level is divided into buckets. Files that overlap, directly or through other files of the level,
are in one bucket. Overlap sets of a bucket are maximal sets of files with a key in common. The
largest one is the overlap of the bucket: the number of files that a reader of one key opens. A
bucket is merged if its overlap is at least t. A tablet is divided into sections (shards in
Cassandra), and outputs are cut at their ends. Denser outputs have more sections, so that files have
about `target_file_bytes`.

Differences from Cassandra:

* Keys are not hashed. The share of a key range is therefore the share of the tablet's bytes in it,
  which for hashed keys is the same. Sections hold equal bytes, and an end near a bound of an
  existing file is moved to it.
* Every bucket that is due gets a job at once, because jobs run on many machines. The job with the
  largest overlap gets the highest priority, and the lowest level comes first.
* A row wins by its version. A job with fewer files than its bucket may therefore take any of them;
  it takes the files with the oldest rows. A wide file that overlaps more files than one job accepts
  is cut where some of these end.
* Files of a table without a key, and files with unknown keys, overlap every other file. Without a
  key, outputs are not cut.
* Files whose rows have all expired are dropped by jobs of their own, without being read.

Fixed point: the inputs of a job form an unbroken key range, and its outputs do not overlap each
other. The number of files at a key never grows, and falls where the inputs overlap.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import floor, inf, log2

from common.errors import ConfigError
from common.model.file import DataFile, total_bytes
from common.model.job import Kind, Plan
from common.model.table import TableSettings
from common.spi.controller import BacklogTracker, WorkUnderWay
from common.spi.deltas import overlapping_sets, span_of
from common.spi.options import of_table, option, option_names, read_options, settings_of
from common.spi.planner import PlanParameters
from common.units import format_bytes, format_count, shown, whole_number
from coordinator.plugins.planners.budgeted import row_sets
from coordinator.plugins.planners.leveled import OUTPUTS_MAX
from coordinator.plugins.planners.packing import capacity_bytes, cut_keys, forced_merges
from coordinator.plugins.planners.size_tiered import PlanDraft, by_size, is_result, is_under_way
from coordinator.plugins.planners.time_window import TimeWindowOptions, drop_expired

_NAME = "planner unified"
FAN_OUT_MAX = 100
SECTIONS_MAX = 1024
"""Maximum number of sections of a tablet."""
LARGEST_MAX = 256
"""Number of files, the largest of a tablet, whose keys decide where sections end."""

# ------------------------------------------------------------------------------------------ Options


@dataclass(frozen=True, slots=True, kw_only=True)
class UnifiedOptions:
    """Options of levels and outputs."""

    scaling_parameters: str = option("T4")
    flush_size_bytes: int = option(1024**2, at_least=1)
    base_section_count: int = option(1, at_least=1, at_most=SECTIONS_MAX)
    target_file_bytes: int = of_table("target_bytes", at_least=1)
    min_file_bytes: int = option(100 * 1024**2, at_least=0)
    file_growth: float = option(0.333, at_least=0, at_most=1)
    max_files_to_compact: int = option(32, at_least=2)
    expired_check_s: float = option(600.0, at_least=1)
    max_files: int = of_table("max_files", at_least=2)
    file_limit: int = of_table("file_limit", at_least=0)
    tombstone_retention_s: float = of_table("tombstone_retention_s", at_least=0)

    @property
    def width(self) -> int:
        """Maximum number of files of one job; the table's limit applies to every planner."""
        return min(self.max_files_to_compact, self.max_files)


def scaling_of(text: str) -> tuple[int, ...]:
    """Return the scaling parameters W, lowest level first.

    Args:
        text: `T4`, `L10`, `N` or whole numbers, separated by spaces or commas.

    Raises:
        ConfigError: A parameter is none of these, or its fan-out is out of bounds.
    """
    words = text.replace(",", " ").split()
    scaling = [_scaling(word) for word in words]
    if not words or None in scaling:
        raise ConfigError(
            f"{_NAME}: option scaling_parameters is {shown(text)}, expected T<n> or L<n> with n"
            f" from 2 to {FAN_OUT_MAX}, N, or whole numbers from {2 - FAN_OUT_MAX} to"
            f" {FAN_OUT_MAX - 2}, separated by spaces: 'T4' or 'T8 L10'"
        )
    return tuple(w for w in scaling if w is not None)


def _scaling(word: str) -> int | None:
    """Return W of a parameter; None if it is invalid."""
    if word.upper() == "N":
        return 0
    kind, digits = word[0].upper(), word[1:]
    sign = {"T": 1, "L": -1}.get(kind)
    if sign is not None:
        fan_out = whole_number(digits)
        return sign * (fan_out - 2) if fan_out is not None and _is_fan_out(fan_out) else None
    number = whole_number(word[1:] if kind in "+-" else word)
    if number is None or not _is_fan_out(2 + number):
        return None
    return -number if kind == "-" else number


def _is_fan_out(number: int) -> bool:
    return 2 <= number <= FAN_OUT_MAX


def fan_out_of(w: int) -> int:
    """Return how many times as dense as this level the next level is."""
    return 2 + abs(w)


def threshold_of(w: int) -> int:
    """Return the number of overlapping files from which on a level is merged."""
    return 2 + max(w, 0)


def name_of(w: int) -> str:
    """Return a scaling parameter as text: `T4`, `L10` or `N`."""
    return f"{'T' if w > 0 else 'L'}{fan_out_of(w)}" if w else "N"


def _options(given: Mapping[str, object], settings: TableSettings | None = None) -> UnifiedOptions:
    options = read_options(UnifiedOptions, _NAME, given, settings)
    scaling_of(options.scaling_parameters)
    return options


# ------------------------------------------------------------------------------------------- Levels


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A file, or the projected output of a merge, with its range of keys and of the tablet."""

    files: tuple[DataFile, ...]
    size_bytes: int
    low: bytes
    high: bytes
    start: float
    """Share of the tablet's bytes below `low`."""
    end: float
    tablet_bytes: int

    @property
    def density(self) -> float:
        """Bytes per share of the tablet; at most the bytes of the tablet."""
        least = self.size_bytes / max(1, self.tablet_bytes)
        return self.size_bytes / max(self.end - self.start, least) if self.size_bytes else 0.0


def pieces_of(files: Iterable[DataFile], *, keyed: bool = True) -> list[Piece]:
    """Return files with their shares of the tablet.

    Args:
        files: All files of the tablet.
        keyed: Whether the table has a key.
    """
    files = [*files]
    ranges = [
        (file.path, file.key_min, file.key_max, file.size_bytes)
        for file in files
        if keyed and file.key_min is not None and file.key_max is not None
    ]
    positions = {row_set.name: (row_set.start, row_set.end) for row_set in row_sets(ranges)}
    tablet_bytes, pieces = total_bytes(files), list[Piece]()
    for file in files:
        start, end = positions.get(file.path, (0.0, 1.0))
        low, high = span_of([file])
        pieces.append(
            Piece(
                files=(file,),
                size_bytes=file.size_bytes,
                low=low,
                high=high,
                start=start,
                end=end,
                tablet_bytes=tablet_bytes,
            )
        )
    return pieces


def merged(pieces: Sequence[Piece]) -> Piece:
    """Return the projected output of a merge: all bytes, over the range of all inputs."""
    return Piece(
        files=tuple(file for piece in pieces for file in piece.files),
        size_bytes=sum(piece.size_bytes for piece in pieces),
        low=min(piece.low for piece in pieces),
        high=max(piece.high for piece in pieces),
        start=min(piece.start for piece in pieces),
        end=max(piece.end for piece in pieces),
        tablet_bytes=pieces[0].tablet_bytes,
    )


@dataclass(frozen=True, slots=True)
class DensityLevel:
    """The files of a level, and when they are merged."""

    number: int
    w: int
    density_max: float
    """Exclusive upper bound."""
    pieces: list[Piece] = field(default_factory=list)

    def threshold(self, options: UnifiedOptions) -> int:
        """Return the number of overlapping files from which on a bucket is merged."""
        return min(threshold_of(self.w), options.width)


def levels_of(pieces: Iterable[Piece], options: UnifiedOptions) -> list[DensityLevel]:
    """Return the levels, the lowest first, up to the highest one with files."""
    scaling = scaling_of(options.scaling_parameters)
    base = options.flush_size_bytes * (1 - 0.9 / fan_out_of(scaling[0]))
    levels = [DensityLevel(0, scaling[0], base * fan_out_of(scaling[0]))]
    for piece in sorted(pieces, key=lambda piece: piece.density):
        while piece.density >= levels[-1].density_max:
            w = scaling[min(len(levels), len(scaling) - 1)]
            levels.append(DensityLevel(len(levels), w, levels[-1].density_max * fan_out_of(w)))
        levels[-1].pieces.append(piece)
    return levels


def _by_key(piece: Piece) -> tuple[bytes, bytes, str]:
    return piece.low, piece.high, piece.files[0].path


@dataclass(frozen=True, slots=True)
class Bucket:
    """Files of a level that overlap, directly or through others, and no other file does."""

    pieces: tuple[Piece, ...]
    most: tuple[Piece, ...]
    """The largest overlap set: files with a key in common."""


def buckets_of(pieces: Iterable[Piece]) -> list[Bucket]:
    """Return the buckets of some files, in the order of keys."""
    buckets, members, most = list[Bucket](), list[Piece](), tuple[Piece, ...]()
    active: dict[int, Piece] = {}
    ends: list[tuple[bytes, int]] = []
    for number, piece in enumerate(sorted(pieces, key=_by_key)):
        if ends and ends[0][0] < piece.low and len(active) > len(most):
            most = tuple(active.values())
        while ends and ends[0][0] < piece.low:
            del active[heappop(ends)[1]]
        if members and not active:
            buckets.append(Bucket(tuple(members), most))
            members, most = [], ()
        members.append(piece)
        active[number] = piece
        heappush(ends, (piece.high, number))
    if members:
        most = max(most, tuple(active.values()), key=len)
        buckets.append(Bucket(tuple(members), most))
    return buckets


@dataclass(frozen=True, slots=True)
class Merge:
    """Files that one job merges."""

    pieces: tuple[Piece, ...]
    ends: tuple[tuple[float, bytes], ...] = ()
    """Ends of files of the bucket at which outputs are cut, so that each overlaps few files: share
    of the tablet's bytes below, and key. Empty: outputs are cut at sections."""


def merges_of(bucket: Bucket, threshold: int, width: int, cap_bytes: float = inf) -> list[Merge]:
    """Return the merges of a bucket that are due: the whole bucket, if it fits into one job.

    Otherwise its largest overlap set is merged in parts, the files with the oldest rows first.
    """
    if len(bucket.most) < threshold:
        return []
    size_bytes = sum(piece.size_bytes for piece in bucket.pieces)
    if len(bucket.pieces) <= width and size_bytes <= cap_bytes:
        return [Merge(bucket.pieces)]
    merges: list[Merge] = []
    rest = sorted(bucket.most, key=_by_age)
    while len(rest) >= threshold:
        part, part_bytes = list[Piece](), 0
        for piece in rest[:width]:
            part_bytes += piece.size_bytes
            if part_bytes > cap_bytes:
                break
            part.append(piece)
        if len(part) < threshold:
            break
        whole_set = len(part) == len(bucket.most) < len(bucket.pieces)
        merges.append(Merge(tuple(part), _ends_within(bucket, width) if whole_set else ()))
        rest = rest[len(part) :]
    return merges


def _ends_within(bucket: Bucket, width: int) -> tuple[tuple[float, bytes], ...]:
    """Return where to cut a merge of the largest overlap set, because its bucket is too wide.

    Each output then overlaps about half as many files as one job accepts. Ends that are close to
    each other count once, because tiny outputs would gain nothing.
    """
    whole = merged(bucket.most)
    ends = sorted(
        (piece.end, piece.high) for piece in bucket.pieces if whole.low <= piece.high < whole.high
    )
    step = max(1, (width - 1) // 2)
    gap = (whole.end - whole.start) * step / (4 * len(bucket.pieces))
    chosen: list[tuple[float, bytes]] = []
    last = whole.start
    for end, high in ends[step - 1 :: step]:
        if gap > 0 and end - last >= gap and whole.end - end >= gap:
            chosen.append((end, high))
            last = end
    return tuple(chosen[: OUTPUTS_MAX - 1])


def _by_age(piece: Piece) -> tuple[bytes, float, str]:
    oldest = min(file.version_min or b"" for file in piece.files)
    return oldest, max(file.added_at_s for file in piece.files), piece.files[0].path


# ----------------------------------------------------------------------------------------- Sections


def section_count(density: float, options: UnifiedOptions) -> int:
    """Return into how many sections a tablet is divided for outputs of a density.

    Args:
        density: Bytes of the output per share of the tablet.
        options: Options of the planner.
    """
    base, target = options.base_section_count, options.target_file_bytes
    least = min(options.min_file_bytes, target)
    if density < least:
        return 1
    if density < least * base:
        return 1 << floor(log2(density / least))
    if density < target * base:
        return base
    doublings = (1 - options.file_growth) * log2(density / target / base)
    return min(base << floor(doublings + 0.5), max(SECTIONS_MAX, base))


# -------------------------------------------------------------------------------------- The planner


class UnifiedPlanner:
    """Plans by levels of density; see the module. Keeps no state between plans."""

    option_names = option_names(UnifiedOptions)
    setting_names = settings_of(UnifiedOptions) | {"ttl_s"}

    def check(self, options: Mapping[str, object]) -> None:
        """Reject options with which no plan can be made; see `DeclaredPlanner`."""
        _options(options)

    def plan(self, parameters: PlanParameters) -> Plan:
        """Return the jobs to run now, and why each other candidate is left; see `Planner`."""
        options = _options(parameters.options, parameters.settings)
        draft = PlanDraft(parameters, options.file_limit)
        pieces = pieces_of(parameters.files.values(), keyed=parameters.keyed)
        # A reader of one key opens at most this number of files.
        depth = max((len(bucket.most) for bucket in buckets_of(pieces)), default=0)
        draft.files_counted = depth
        work = _Work(parameters, options, draft)
        if parameters.kind is Kind.USER:
            _plan_request(work, pieces)
            return draft.plan()
        windows = TimeWindowOptions(
            max_files=options.width,
            tombstone_retention_s=options.tombstone_retention_s,
            expired_check_s=options.expired_check_s,
        )
        rest, notes = drop_expired(parameters, windows, draft)
        draft.files_counted = depth
        paths = {file.path for file in rest}
        _plan_levels(work, [piece for piece in pieces if piece.files[0].path in paths])
        for file in rest:
            if note := notes.get(file.path):
                draft.add_note(file, note)
        return draft.plan()


@dataclass(frozen=True, slots=True)
class _Work:
    """State of one plan."""

    parameters: PlanParameters
    options: UnifiedOptions
    draft: PlanDraft
    boundaries: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    """Number of sections → keys after which a section ends."""

    def cuts(self, output: Piece) -> tuple[bytes, ...]:
        """Return the keys at which a job's output is cut."""
        parameters = self.parameters
        count = section_count(output.density, self.options)
        if count == 1 or not parameters.keyed:
            return ()
        if count not in self.boundaries:
            files = by_size(parameters.files.values())[-LARGEST_MAX:]
            self.boundaries[count] = cut_keys(files, count, parameters.key_types)
        low, high = span_of(output.files)
        cuts = [cut for cut in self.boundaries[count] if low <= cut < high]
        return tuple(cuts[: OUTPUTS_MAX - 1])


def _plan_levels(work: _Work, pieces: Sequence[Piece]) -> None:
    """Plan the merges of all buckets that are due, the largest overlap first."""
    options, cap = work.options, capacity_bytes(work.parameters)
    due: list[tuple[int, int, Merge, str]] = []
    for level in levels_of(pieces, options):
        threshold = level.threshold(options)
        for bucket in buckets_of(level.pieces):
            _leave(work, level, bucket, threshold)
            overlap = len(bucket.most)
            where = (
                f"up to {overlap} files of level {level.number} overlap at one key"
                f" ({name_of(level.w)} merges from {threshold} on)"
            )
            due += [
                (overlap, level.number, merge, where)
                for merge in merges_of(bucket, threshold, options.width, cap)
            ]
    for overlap, _, merge, where in sorted(due, key=lambda job: (-job[0], job[1])):
        output = merged(merge.pieces)
        files, size = format_count(len(merge.pieces), "file"), format_bytes(output.size_bytes)
        work.draft.add_job(
            output.files,
            f"{where}: {files} of {size} are merged",
            cuts=tuple(key for _, key in merge.ends) or work.cuts(output),
            overlap=overlap,
        )


def _leave(work: _Work, level: DensityLevel, bucket: Bucket, threshold: int) -> None:
    """Record why the files of a bucket are left; jobs replace this later."""
    if not work.draft.explains:
        return
    held = format_bytes(level.density_max)
    reason = f"is in level {level.number} ({name_of(level.w)}, density below {held}), and "
    overlap = len(bucket.most)
    if overlap >= threshold:
        reason += (
            f"up to {overlap} files overlap; this one waits for the jobs of others, or they are"
            " more than any group accepts"
        )
    elif len(bucket.pieces) == 1:
        reason += "no other file of the level overlaps it"
    else:
        reason += f"at most {overlap} files overlap at one key; they are merged from {threshold} on"
    work.draft.leave([file for piece in bucket.pieces for file in piece.files], reason)


def _plan_request(work: _Work, pieces: Sequence[Piece]) -> None:
    """Merge all files of a request that overlap, and cut the last output."""
    parameters, draft = work.parameters, work.draft
    if is_under_way(Kind.USER, parameters):
        draft.leave(parameters.candidates, "waits for the running jobs of the request")
        return
    by_path = {piece.files[0].path: piece for piece in pieces}
    candidates = parameters.candidates
    sets = overlapping_sets(candidates) if parameters.keyed else [[*candidates]]
    for files in filter(None, sets):
        if len(files) == 1 and is_result(files[0], parameters):
            draft.leave(files, "is a result of the request, and overlaps no other file")
            continue
        draft.leave(files, "is merged in a later step, after earlier jobs")
        for step in forced_merges(by_size(files), work.options.width):
            output = merged([by_path[file.path] for file in step])
            whole, size = len(step) == len(files), format_bytes(output.size_bytes)
            draft.add_job(
                step,
                f"a request merges all files that overlap: {format_count(len(step), 'file')} of"
                f" {size}",
                cuts=work.cuts(output) if whole else (),
            )


# ------------------------------------------------------------------------------------------ Tracker
# The backlog of the unified planner: the bytes that it reads until no bucket is due.
#
#     owed = sum over rounds, levels and merges of the bytes of the merge's inputs
#
# A round performs all merges that are due. Each output is assumed to be as large as its inputs
# together, and to cover their key range, so it counts in the level of its density in the next
# round; where a job is cut at ends of files, its outputs are cut, too. Shares of the tablet stay as
# they are. Bytes that running jobs have read of files in the first round are subtracted. At rest no
# bucket is due, and the backlog is 0.


class UnifiedTracker:
    """Backlog of one tablet under the unified planner."""

    def __init__(self, options: UnifiedOptions) -> None:
        self._options = options
        self._files: dict[str, DataFile] = {}
        self._owed_bytes: int | None = 0
        """Cached backlog; None after files were added or removed."""
        self._due: frozenset[str] = frozenset()
        """Inputs of merges that are due now."""

    def add(self, file: DataFile) -> None:
        """Add a file."""
        self._files[file.path] = file
        self._owed_bytes = None

    def remove(self, path: str) -> None:
        """Remove a file."""
        if self._files.pop(path, None) is not None:
            self._owed_bytes = None

    def backlog_bytes(self, work: WorkUnderWay) -> float:
        """Return the bytes that remain to be rewritten."""
        if self._owed_bytes is None:
            self._owed_bytes, self._due = self._until_rest()
        done_bytes = sum(
            min(max(read_bytes, 0), self._files[path].size_bytes)
            for path, read_bytes in work.read_bytes.items()
            if path in self._due
        )
        return float(max(0, self._owed_bytes - done_bytes))

    def _until_rest(self) -> tuple[int, frozenset[str]]:
        """Return the bytes of all merges until rest, and the inputs of the first ones."""
        options, owed_bytes, due = self._options, 0, frozenset[str]()
        pieces = pieces_of(file for file in self._files.values() if file.size_bytes > 0)
        while True:
            merges = [
                merge
                for level in levels_of(pieces, options)
                for bucket in buckets_of(level.pieces)
                for merge in merges_of(bucket, level.threshold(options), options.width)
            ]
            if not merges:
                return owed_bytes, due
            inputs = [piece for merge in merges for piece in merge.pieces]
            if not owed_bytes:
                due = frozenset(file.path for piece in inputs for file in piece.files)
            owed_bytes += sum(piece.size_bytes for piece in inputs)
            taken = {id(piece) for piece in inputs}
            pieces = [piece for piece in pieces if id(piece) not in taken]
            pieces += [output for merge in merges for output in _projected(merge)]


def _projected(merge: Merge) -> list[Piece]:
    """Return the outputs of a merge if no row is dropped; rows are spread evenly in each input."""
    whole = merged(merge.pieces)
    start, low, left_bytes, outputs = whole.start, whole.low, whole.size_bytes, list[Piece]()
    for end, high in merge.ends:
        size_bytes = int(sum(_bytes_between(piece, start, end) for piece in merge.pieces))
        outputs.append(
            replace(whole, size_bytes=size_bytes, low=low, high=high, start=start, end=end)
        )
        start, low, left_bytes = end, high + b"\0", left_bytes - size_bytes
    return [*outputs, replace(whole, size_bytes=left_bytes, low=low, start=start)]


def _bytes_between(piece: Piece, start: float, end: float) -> float:
    if piece.end <= piece.start:
        return piece.size_bytes if start <= piece.start < end else 0.0
    shared = min(piece.end, end) - max(piece.start, start)
    return piece.size_bytes * max(0.0, shared) / (piece.end - piece.start)


class UnifiedTrackers:
    """Factory of trackers for the unified planner; see the section."""

    option_names = option_names(UnifiedOptions)
    setting_names = settings_of(UnifiedOptions)

    def tracker(self, settings: TableSettings, options: Mapping[str, object]) -> BacklogTracker:
        """Return the tracker of a tablet without files; see `TrackerPlugin`."""
        return UnifiedTracker(_options(options, settings))
