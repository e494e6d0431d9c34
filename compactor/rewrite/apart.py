"""Which row groups of a keyed job may be copied as they are: pure, from what footers say.

A row group that meets no other, of a file whose keys ascend and whose rows are all alive,
comes out as it went in. Whether it lies where its footer says is found out by whoever copies
it: the first and the last key are decoded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from compactor.rewrite.kernel.bounds import Group

RUN_BYTES_MIN = 16 * 1024**2
"""Decoded row groups in a row that are worth a seam in the output, at least."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Row groups that follow each other in the order of keys, and meet no others."""

    groups: tuple[Group, ...]

    def stretches(self) -> list[tuple[Group, ...]]:
        """Return them by stretches in which each follows the one before in its file."""
        numbered = groupby(
            enumerate(self.groups), lambda each: (each[1].input, each[1].number - each[0])
        )
        return [tuple(group for _, group in groups) for _, groups in numbered]


def copies_of(
    groups: Sequence[Group], copyable: frozenset[int], cuts: Sequence[bytes], run_bytes: int
) -> list[Copy]:
    """Return runs of row groups that may be copied, by key.

    Args:
        groups: Row groups of all inputs.
        copyable: Inputs whose keys are said to be unique and alive, of the wanted form.
        cuts: Keys after which another output begins.
        run_bytes: What a run must have at least.
    """
    if any(group.low is None or group.high is None for group in groups):
        return []  # Something may be anywhere.
    ordered = sorted(groups, key=lambda group: (group.low or b"", group.high or b""))
    runs: list[list[Group]] = [[]]
    reached = b""
    for at, group in enumerate(ordered):
        low, high = group.low or b"", group.high or b""
        following = ordered[at + 1].low if at + 1 < len(ordered) else None
        alone = (at == 0 or reached < low) and (following is None or high < following)
        cut = any(low <= each < high for each in cuts)
        if alone and not cut and group.input in copyable:
            if any(runs[-1] and (runs[-1][-1].high or b"") <= each < low for each in cuts):
                runs.append([])
            runs[-1].append(group)
        elif runs[-1]:
            runs.append([])
        reached = max(reached, high)
    sizes = [sum(group.size_bytes for group in run) for run in runs]
    return [
        Copy(tuple(run)) for run, size in zip(runs, sizes, strict=True) if size >= max(1, run_bytes)
    ]


def ends_of(copies: Sequence[Copy]) -> list[bytes]:
    """Return keys that part what is merged from what is copied.

    A range may end with the least key of a copy: no other row group holds that.
    """
    groups = [(copy.groups[0].low, copy.groups[-1].high) for copy in copies]
    return [key for ends in groups for key in ends if key is not None]
