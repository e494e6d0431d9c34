"""Split keys that balance the bytes of a tablet. Pure.

The metadata has the smallest and greatest key of a file. For the largest files, key samples give
more detail: `spans_of_samples` divides such a file into spans of equal bytes. The candidates are
the bounds of the spans. If a candidate lies inside a span, the bytes of the span are divided by
linear interpolation between its bounds. Among candidates of similar balance, the one that requires
the fewest rewritten bytes is chosen.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from common.metadata.predicates import may_cross
from common.model.file import DataFile
from common.model.keys import SPLIT_BYTES_MAX
from common.model.tablet import PLUS_INFINITY, Bounds

BALANCE_SLACK = 0.2
"""Fraction of a part's bytes by which a cut may miss its target to save rewritten bytes."""
IMBALANCE_MAX = 0.6
"""Maximum deviation of a cut, as a fraction of a part's bytes; halves keep at least a fifth."""
SAMPLED_FILES_MAX = 4
SAMPLED_SHARE = 2 / 3
"""Fraction of a tablet's bytes; once the sampled files have it, no further file is sampled."""
SURE_SHARE = 0.1
"""Fraction of a tablet's bytes; if crossing files have no more, samples are not needed."""
CANDIDATES_MAX = 64
"""Keys near a target that are compared by the bytes to rewrite."""
_DIGITS = 8


@dataclass(frozen=True, slots=True)
class KeySpan:
    """A number of bytes whose keys lie between `key_min` and `key_max`, inclusive."""

    key_min: bytes
    key_max: bytes
    size_bytes: float


def span_of_file(file: DataFile) -> tuple[KeySpan, ...]:
    """Return a file as one span; a file without keys has no rows and gives no span."""
    if file.key_min is None or file.key_max is None:
        return ()
    return (KeySpan(file.key_min, file.key_max, file.size_bytes),)


def spans_of_samples(file: DataFile, keys: Sequence[bytes]) -> tuple[KeySpan, ...]:
    """Return a file as spans of equal bytes between sampled keys.

    Args:
        file: The file; with fewer than two samples it becomes a single span.
        keys: Keys of rows at even distances in the file, in any order.
    """
    ordered = sorted(keys)
    if len(ordered) < 2:
        return span_of_file(file)
    share = file.size_bytes / (len(ordered) - 1)
    return tuple(KeySpan(low, high, share) for low, high in pairwise(ordered))


def files_to_sample(files: Iterable[DataFile]) -> tuple[DataFile, ...]:
    """Return the files to sample, largest first; together they have most of the bytes."""
    with_keys = [file for file in files if file.key_min is not None and not file.open]
    ordered = sorted(with_keys, key=lambda file: (-file.size_bytes, file.path))
    enough = SAMPLED_SHARE * sum(file.size_bytes for file in ordered)
    chosen: list[DataFile] = []
    for file in ordered[:SAMPLED_FILES_MAX]:
        if sum(each.size_bytes for each in chosen) < enough:
            chosen.append(file)
    return tuple(chosen)


def split_keys(
    bounds: Bounds,
    files: Sequence[DataFile],
    samples: Mapping[str, Sequence[bytes]] | None = None,
    *,
    parts: int = 2,
) -> tuple[bytes, ...]:
    """Return the keys that split a tablet into parts of about equal bytes, ascending.

    Args:
        bounds: Bounds of the tablet.
        files: Files of the tablet.
        samples: Path → sampled keys, for the files that were sampled.
        parts: Number of parts, at least 2.

    Returns:
        Up to `parts` - 1 keys, each the last key of its part. A key is missing if no known key is
        close enough to its target.
    """
    assert parts >= 2, parts
    known = samples or {}
    spans = [
        span
        for file in files
        for span in (
            spans_of_samples(file, known[file.path]) if file.path in known else span_of_file(file)
        )
    ]
    total = sum(span.size_bytes for span in spans)
    cuts = _candidates(bounds, spans)
    if not cuts or not total:
        return ()
    chosen: list[bytes] = []
    for number in range(1, parts):
        cut = _nearest(number / parts, 1 / parts, cuts, lambda key: _up_to(key, spans) / total)
        best = None if cut is None else _cheapest(cut, files)
        if best is not None and (not chosen or best > chosen[-1]):
            chosen.append(best)
    return tuple(chosen)


def is_sure(cut: bytes, files: Sequence[DataFile]) -> bool:
    """Return whether nearly all bytes are in files that do not cross a cut."""
    total = sum(file.size_bytes for file in files)
    return sum(file.size_bytes for file in files if may_cross(file, cut)) <= SURE_SHARE * total


def _candidates(bounds: Bounds, spans: Sequence[KeySpan]) -> list[bytes]:
    """Return keys inside a tablet at which it may be cut, with keys on both sides."""
    keys = {key for span in spans for key in (span.key_min, span.key_max)}
    if not keys:
        return []
    last = max(keys)
    return sorted(key for key in keys if _is_inside(bounds, key) and key < last)


def _is_inside(bounds: Bounds, key: bytes) -> bool:
    within = (bounds.start is None or key > bounds.start) and key < bounds.end
    return within and b"" < key < PLUS_INFINITY and len(key) <= SPLIT_BYTES_MAX


def _nearest(
    aim: float, part: float, cuts: Sequence[bytes], share: Callable[[bytes], float]
) -> list[bytes] | None:
    """Return the cuts close enough to a target share, or None; shares ascend with the cuts."""
    at = bisect_left(cuts, aim, key=share)
    beside = cuts[max(0, at - 1) : at + 1]
    best = min(abs(share(cut) - aim) for cut in beside)
    if best > IMBALANCE_MAX * part:
        return None
    reach = min(best + BALANCE_SLACK * part, IMBALANCE_MAX * part)
    first, last = (
        bisect_left(cuts, aim - reach, key=share),
        bisect_right(cuts, aim + reach, key=share),
    )
    near = [*cuts[first:last], *beside]
    step = max(1.0, len(near) / CANDIDATES_MAX)
    fewer = [near[int(number * step)] for number in range(int(len(near) / step))]
    kept = [cut for cut in {*fewer, *beside} if abs(share(cut) - aim) <= reach]
    return sorted(kept, key=lambda cut: (abs(share(cut) - aim), cut))


def _cheapest(cuts: Sequence[bytes], files: Sequence[DataFile]) -> bytes:
    """Return the cut that requires the fewest rewritten bytes; the first one of a tie."""

    def rewritten(cut: bytes) -> int:
        return sum(file.size_bytes for file in files if may_cross(file, cut))

    return min(cuts, key=rewritten)


def _up_to(cut: bytes, spans: Iterable[KeySpan]) -> float:
    """Return the estimated number of bytes with keys up to a cut."""
    return sum(span.size_bytes * _share_up_to(cut, span) for span in spans)


def _share_up_to(cut: bytes, span: KeySpan) -> float:
    """Return the fraction of a span with keys up to a cut, assuming an even distribution."""
    if span.key_max <= cut:
        return 1.0
    if cut < span.key_min:
        return 0.0
    low, at, high = (_number(key, span) for key in (span.key_min, cut, span.key_max))
    return (at - low) / (high - low) if high > low else 0.5


def _number(key: bytes, span: KeySpan) -> int:
    """Return the first bytes of a key after the common prefix of a span's bounds, as a number."""
    same = 0
    for one, other in zip(span.key_min, span.key_max, strict=False):
        if one != other:
            break
        same += 1
    return int.from_bytes(key[same : same + _DIGITS].ljust(_DIGITS, b"\x00"), "big")
