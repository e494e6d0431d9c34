"""The backlog of size-tiered compaction, in two modes.

A byte of a file of size S is rewritten once per tier, up to the tier of the whole tablet of T
bytes. It therefore needs log4(T / S) rewrites, where 4 is the number of files merged per tier.

`seed`, from the note on ScyllaDB's controller, counts all files. With E = S - C for a file with C
bytes already rewritten, and W for files that are being written:

    backlog = sum of E log4(T / S) + sum of W log4(T / W)

T counts finished files only, because a partial output would count the same bytes twice. By this
formula, even a tablet without possible merges has a backlog.

`interesting`, from current ScyllaDB, counts only the files of tiers that are large enough to be
merged, and no outputs. It is 0 if there is no work, and falls linearly while a job runs.
Controllers use this mode.

Sums are kept relative to a reference near T, because the difference of two large numbers loses
precision. They are recomputed after many changes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import e, fsum, inf, log1p, log2
from typing import Generic, TypeVar

from common.model.file import DataFile
from common.model.table import TableSettings
from common.spi.options import option, option_names, read_options, settings_of
from common.spi.tracker import BacklogTracker, WorkUnderWay
from coordinator.plugins.planners.tiers import TierOptions, buckets, check_tier_options

SEED, INTERESTING = "seed", "interesting"
MODES = (SEED, INTERESTING)
SUMMED_ANEW_AFTER = 1024
"""Number of changes after which sums are recomputed; the number of files if that is larger."""
EXACT_UP_TO = 64
"""Up to this number of files, sums are recomputed at each read after a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeTieredBacklogOptions(TierOptions):
    """Options of the tracker; the tier options are those of the planner."""

    mode: str = option(INTERESTING, one_of=MODES)
    log_base: float = option(4.0, above=1)
    """Number of files that are merged into one of the next tier."""
    file_tax_bytes: int = option(0, at_least=0)
    """Added to the size of each counted file in mode `interesting`, because tiny files are work
    too.
    """


OptionsType = TypeVar("OptionsType", bound=SizeTieredBacklogOptions)


# -------------------------------------------------------------------------------- Sums of mode seed


class TierSums:
    """The part of the `seed` formula that depends only on files: T, and the sum of S log S.

    Adding and removing a file take constant time.
    """

    def __init__(self, log_base: float) -> None:
        self._scale = 1.0 / log2(log_base)
        self._sizes: dict[str, int] = {}
        self._reference = 1
        """Reference size, near T."""
        self._weighted = 0.0
        """Sum of S log(S / reference)."""
        self._changes = 0
        self.total_bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, path: str, size_bytes: int) -> None:
        """Add a file; files of 0 bytes are ignored."""
        self.remove(path)
        if size_bytes > 0:
            self._sizes[path] = size_bytes
            self.total_bytes += size_bytes
            self._weighted += self._weight(size_bytes)
            self._changes += 1

    def remove(self, path: str) -> None:
        """Remove a file if it exists."""
        size_bytes = self._sizes.pop(path, 0)
        if size_bytes:
            self.total_bytes -= size_bytes
            self._weighted -= self._weight(size_bytes)
            self._changes += 1

    def backlog_bytes(self, read: Mapping[str, int], written: Iterable[int]) -> float:
        """Return the backlog by the `seed` formula.

        Args:
            read: Path → rewritten bytes of the file.
            written: Written bytes of each output so far.
        """
        self._sum_anew()
        if not self.total_bytes:
            return 0.0
        effective, weighted = self.total_bytes, self._weighted
        for path, done_bytes in read.items():
            size_bytes = self._sizes.get(path, 0)
            done_bytes = min(max(done_bytes, 0), size_bytes)
            if done_bytes:
                effective -= done_bytes
                weighted -= done_bytes * self._exponent(size_bytes)
        for size_bytes in written:
            if size_bytes > 0:
                effective += size_bytes
                weighted += self._weight(size_bytes)
        if effective <= 0:
            return 0.0
        return max(0.0, effective * self._exponent(self.total_bytes) - weighted)

    def _sum_anew(self) -> None:
        """Set the reference to T and recompute the sum; rounding errors then do not accumulate."""
        if not self._changes:
            return
        most = max(SUMMED_ANEW_AFTER, len(self._sizes))
        near = self._reference <= 2 * self.total_bytes and self.total_bytes <= 2 * self._reference
        if len(self._sizes) <= EXACT_UP_TO or self._changes > most or not near:
            self._reference = max(1, self.total_bytes)
            self._weighted = fsum(map(self._weight, self._sizes.values()))
            self._changes = 0

    def _weight(self, size_bytes: int) -> float:
        return size_bytes * self._exponent(size_bytes)

    def _exponent(self, size_bytes: int) -> float:
        """Return log(size / reference), which is also accurate for nearly equal sizes."""
        beyond = (size_bytes - self._reference) / self._reference
        ratio = log1p(beyond) * log2(e) if abs(beyond) < 0.5 else log2(size_bytes / self._reference)
        return ratio * self._scale


class SeedTracker:
    """Backlog by the `seed` formula."""

    def __init__(self, options: SizeTieredBacklogOptions) -> None:
        self._sums = TierSums(options.log_base)

    def add(self, file: DataFile) -> None:
        """Add a file."""
        self._sums.add(file.path, file.size_bytes)

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._sums.remove(path)

    def backlog_bytes(self, work: WorkUnderWay) -> float:
        """Return the bytes that remain to be rewritten."""
        written = (output.size_bytes for output in work.outputs)
        return self._sums.backlog_bytes(work.read_bytes, written)


# --------------------------------------------------------------------------------- Mode interesting


class InterestingTracker:
    """Backlog of the tiers that are large enough to be merged.

    Tiers are recomputed at the first read after files were added or removed.
    """

    def __init__(self, options: SizeTieredBacklogOptions) -> None:
        self._options = options
        self._files: dict[str, DataFile] = {}
        self._rewrites: dict[str, float] = {}
        """Counted file → expected number of rewrites of its bytes."""
        self._counted_bytes = 0
        self._owed_bytes = 0.0
        self._valid_until_s = -inf

    def add(self, file: DataFile) -> None:
        """Add a file."""
        self._files[file.path] = file
        self._valid_until_s = -inf

    def remove(self, path: str) -> None:
        """Remove a file."""
        if self._files.pop(path, None) is not None:
            self._valid_until_s = -inf

    def backlog_bytes(self, work: WorkUnderWay) -> float:
        """Return the bytes that remain to be rewritten."""
        if work.now_s >= self._valid_until_s:
            self._form_tiers(work.now_s)
        done_bytes, done_owed = 0, 0.0
        for path, read_bytes in work.read_bytes.items():
            if (rewrites := self._rewrites.get(path)) is not None:
                read_bytes = min(max(read_bytes, 0), self._files[path].size_bytes)
                done_bytes += read_bytes
                done_owed += read_bytes * rewrites
        if done_bytes >= self._counted_bytes:
            return 0.0
        return max(0.0, self._owed_bytes - done_owed)

    def _form_tiers(self, now_s: float) -> None:
        options = self._options
        files = [file for file in self._files.values() if file.size_bytes > 0]
        counted = [
            file
            for tier in buckets(files, options, now_s)
            if len(tier) >= options.min_threshold
            for file in tier
        ]
        total_bytes = sum(file.size_bytes for file in files)
        base = log2(options.log_base)
        self._rewrites = {file.path: log2(total_bytes / file.size_bytes) / base for file in counted}
        self._counted_bytes = sum(file.size_bytes for file in counted)
        self._owed_bytes = fsum(
            (file.size_bytes + options.file_tax_bytes) * self._rewrites[file.path]
            for file in counted
        )
        # The tier of tiny files can change when one of them reaches the minimum age.
        ages = (
            file.added_at_s + options.min_file_age_s
            for file in files
            if file.size_bytes < options.min_file_bytes and file.added_at_s > 0
        )
        self._valid_until_s = min((at_s for at_s in ages if at_s > now_s), default=inf)


# -------------------------------------------------------------------------------------- The plug-in


def tier_tracker(options: SizeTieredBacklogOptions) -> BacklogTracker:
    """Return a tracker for the mode in the options."""
    return SeedTracker(options) if options.mode == SEED else InterestingTracker(options)


class TierTrackers(Generic[OptionsType]):
    """Factory of trackers that use tiers: of a tablet, a level or a window."""

    def __init__(
        self, name: str, kind: type[OptionsType], make: Callable[[OptionsType], BacklogTracker]
    ) -> None:
        """Create a factory.

        Args:
            name: Name of the trackers, for error messages.
            kind: The options dataclass.
            make: Returns the tracker of a tablet without files.
        """
        self.option_names = option_names(kind)
        self.setting_names = settings_of(kind)
        self._name, self._kind, self._make = f"tracker {name}", kind, make

    def tracker(self, settings: TableSettings, options: Mapping[str, object]) -> BacklogTracker:
        """Return the tracker of a tablet without files.

        Raises:
            ConfigError: An option is unknown or invalid.
        """
        found = read_options(self._kind, self._name, options, settings)
        check_tier_options(self._name, found)
        return self._make(found)


class SizeTieredTrackers(TierTrackers[SizeTieredBacklogOptions]):
    """Factory of trackers for size-tiered compaction; see the module."""

    def __init__(self) -> None:
        """Create the factory."""
        super().__init__("size-tiered", SizeTieredBacklogOptions, tier_tracker)
