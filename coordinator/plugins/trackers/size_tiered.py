"""The backlog of size-tiered compaction, in two modes.

A byte of a file of size S is rewritten once on each tier up to that of the whole tablet, T bytes,
so it owes log4(T / S) rewrites; 4 is the number of files that a tier is merged from.

`seed`, from the note on ScyllaDB's controller, counts all files. With E = S - C for a file of
which C bytes are rewritten already, and W for files that are being written:

    backlog = sum of E log4(T / S) + sum of W log4(T / W)

T counts finished files only: half an output would count the same bytes twice. A tablet whose tiers
are all done still owes something by this formula.

`interesting`, from ScyllaDB as it is today, counts only the files of tiers that are large enough
to be merged, and no outputs. It is 0 where nothing is to be done, and falls in a straight line
while a job runs. Control goes by this one.

Sums are kept relative to about T, since the difference of two large numbers is wrong in its last
digits, and are summed anew after many changes.
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
"""Changes of a tablet, or as many as it has files if those are more."""
EXACT_UP_TO = 64
"""Files that are summed anew at each read that follows a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeTieredBacklogOptions(TierOptions):
    """Numbers that the tracker goes by; those of tiers are the planner's."""

    mode: str = option(INTERESTING, one_of=MODES)
    log_base: float = option(4.0, above=1)
    """Files that are merged into one of the next tier."""
    file_tax_bytes: int = option(0, at_least=0)
    """Added to each file that counts, in mode `interesting`: many tiny files are work, too."""


OptionsType = TypeVar("OptionsType", bound=SizeTieredBacklogOptions)


# --------------------------------------------------------------------------------- The seed's sums


class TierSums:
    """The part of the seed's formula that changes only with files: T, and the sum of S log S.

    Adding and removing a file take the same time however many there are.
    """

    def __init__(self, log_base: float) -> None:
        self._scale = 1.0 / log2(log_base)
        self._sizes: dict[str, int] = {}
        self._reference = 1
        """Sizes count relative to this one, about T."""
        self._weighted = 0.0
        """Sum of S log(S / reference)."""
        self._changes = 0
        self.total_bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, path: str, size_bytes: int) -> None:
        """Add a file; one of 0 bytes owes nothing."""
        self.remove(path)
        if size_bytes > 0:
            self._sizes[path] = size_bytes
            self.total_bytes += size_bytes
            self._weighted += self._weight(size_bytes)
            self._changes += 1

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        size_bytes = self._sizes.pop(path, 0)
        if size_bytes:
            self.total_bytes -= size_bytes
            self._weighted -= self._weight(size_bytes)
            self._changes += 1

    def backlog_bytes(self, read: Mapping[str, int], written: Iterable[int]) -> float:
        """Return the backlog by the seed's formula.

        Args:
            read: Path → bytes of it that are rewritten.
            written: Bytes of each output so far.
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
        """Take T for the reference and sum again, so that rounding does not add up."""
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
        """Return log(size / reference), exact also where they are about the same."""
        beyond = (size_bytes - self._reference) / self._reference
        ratio = log1p(beyond) * log2(e) if abs(beyond) < 0.5 else log2(size_bytes / self._reference)
        return ratio * self._scale


class SeedTracker:
    """Backlog by the seed's formula."""

    def __init__(self, options: SizeTieredBacklogOptions) -> None:
        self._sums = TierSums(options.log_base)

    def add(self, file: DataFile) -> None:
        """Note a file."""
        self._sums.add(file.path, file.size_bytes)

    def remove(self, path: str) -> None:
        """Forget a file."""
        self._sums.remove(path)

    def backlog_bytes(self, work: WorkUnderWay) -> float:
        """Return the bytes still to be rewritten."""
        written = (output.size_bytes for output in work.outputs)
        return self._sums.backlog_bytes(work.read_bytes, written)


# ------------------------------------------------------------------------- Tiers that are worth it


class InterestingTracker:
    """Backlog of the tiers that are large enough to be merged.

    Tiers are formed again at the first read after files came or went.
    """

    def __init__(self, options: SizeTieredBacklogOptions) -> None:
        self._options = options
        self._files: dict[str, DataFile] = {}
        self._rewrites: dict[str, float] = {}
        """File that counts → how often its bytes are still rewritten."""
        self._counted_bytes = 0
        self._owed_bytes = 0.0
        self._valid_until_s = -inf

    def add(self, file: DataFile) -> None:
        """Note a file."""
        self._files[file.path] = file
        self._valid_until_s = -inf

    def remove(self, path: str) -> None:
        """Forget a file."""
        if self._files.pop(path, None) is not None:
            self._valid_until_s = -inf

    def backlog_bytes(self, work: WorkUnderWay) -> float:
        """Return the bytes still to be rewritten."""
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
        # Tiny files are one tier when the youngest of them is old enough.
        ages = (
            file.added_at_s + options.min_file_age_s
            for file in files
            if file.size_bytes < options.min_file_bytes and file.added_at_s > 0
        )
        self._valid_until_s = min((at_s for at_s in ages if at_s > now_s), default=inf)


# -------------------------------------------------------------------------------------- The plug-in


def tier_tracker(options: SizeTieredBacklogOptions) -> BacklogTracker:
    """Return a tracker in the mode that the options name."""
    return SeedTracker(options) if options.mode == SEED else InterestingTracker(options)


class TierTrackers(Generic[OptionsType]):
    """Makes trackers that have tiers in them: of a tablet, a level, a window."""

    def __init__(
        self, name: str, kind: type[OptionsType], make: Callable[[OptionsType], BacklogTracker]
    ) -> None:
        """Make trackers of one name.

        Args:
            name: For messages.
            kind: The dataclass of their options.
            make: Returns the tracker of a tablet without files.
        """
        self.option_names = option_names(kind)
        self.setting_names = settings_of(kind)
        self._name, self._kind, self._make = f"tracker {name}", kind, make

    def tracker(self, settings: TableSettings, options: Mapping[str, object]) -> BacklogTracker:
        """Return the tracker of a tablet without files.

        Raises:
            ConfigError: An option is unknown or refused.
        """
        found = read_options(self._kind, self._name, options, settings)
        check_tier_options(self._name, found)
        return self._make(found)


class SizeTieredTrackers(TierTrackers[SizeTieredBacklogOptions]):
    """Makes trackers for size-tiered compaction; see the module."""

    def __init__(self) -> None:
        """Make trackers of the mode that the options name."""
        super().__init__("size-tiered", SizeTieredBacklogOptions, tier_tracker)
