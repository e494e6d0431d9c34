"""Joins row groups of Parquet files into one file, as bytes.

    look     piece by piece: footer and page indexes are read, and held against the others
    copy     beside it, those that were looked at before: pages, Bloom filters
    end      page indexes, footer; the file is made durable, read back and compared

Whatever goes wrong: the inputs are as they were, and no output is left.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from common.errors import NotStitchableError
from common.parquet.location import Location
from compactor.rewrite.stitch.copying import Copying, output_faults
from compactor.rewrite.stitch.ending import arrow_schema_of, ending
from compactor.rewrite.stitch.footer import MAGIC, Layout
from compactor.rewrite.stitch.local_target import LocalTarget
from compactor.rewrite.stitch.looking import Looked, look
from compactor.rewrite.stitch.pieces import ROW_GROUPS_MAX, Footing, Piece, Stitched
from compactor.rewrite.stitch.stored_target import StoredTarget
from compactor.rewrite.stitch.target import OnCopied, Target

FOOTERS_BYTES_MAX = 6 * 1024**2
"""Footers of all pieces together; opened, all of them are held until the end."""


def stitch(
    location: Location,
    pieces: Sequence[Piece],
    output: str,
    *,
    footing: Footing | None = None,
    on_copied: OnCopied = lambda _: None,
) -> Stitched:
    """Write row groups of some files into a new file, one after the other, as bytes.

    No page is read into rows. Page indexes and Bloom filters are moved with their pages.
    The pieces must have the same Parquet columns (names, types, repetition, logical types,
    field ids); codecs and encodings may differ. Who cares for the order of rows, keys that
    meet, tombstones or expired rows has looked before.

    Args:
        location: Of the output, and of pieces that name no other.
        pieces: In the order of their rows; one at least.
        output: Path of the new file; nothing may be there.
        footing: What the footer says beside the row groups.
        on_copied: Hears of bytes copied, every few megabytes; what it raises ends the stitch.

    Raises:
        NotStitchableError: The row groups cannot be copied as they are; the rows perhaps can.
        InputError: A piece is missing, cannot be read, is cut off or changed meanwhile.
        RewriteError: The output cannot be written: no space, no rights, a name taken.
        VerificationError: The output does not hold the bytes that were read.
        UnavailableError: The storage does not answer.
    """
    footing = footing or Footing()
    if not pieces:
        raise NotStitchableError("there is nothing to stitch, wanted one piece at least")
    with _writing(location, output, on_copied) as target:
        with output_faults(output):
            target.write(MAGIC)
        with Copying(target, output) as copying:
            looked = _looked(location, pieces, copying)
            rest = _ending(looked, footing)
        copied_bytes = target.position - len(MAGIC)
        with output_faults(output):
            target.write(rest)
            size_bytes = target.position
            target.finish()
    moved = [group for each in looked for group in each.groups]
    return Stitched(
        size_bytes=size_bytes,
        rows=sum(each.group.rows for each in moved),
        row_groups=len(moved),
        copied_bytes=copied_bytes,
        synced_bytes=target.synced_bytes,
        sync_s=target.sync_s,
    )


def _looked(location: Location, pieces: Sequence[Piece], copying: Copying) -> list[Looked]:
    """Look at all pieces; those that have been are copied meanwhile."""
    looked: list[Looked] = []
    layouts: dict[tuple[str, str], Layout] = {}
    footer_bytes, row_groups, end = 0, 0, len(MAGIC)
    for piece in pieces:
        name = ((piece.location or location).uri, piece.path)
        each = look(location, piece, end, layouts.get(name))
        looked.append(each)
        if layouts.setdefault(name, each.layout) is each.layout:
            footer_bytes += len(each.layout.footer)
            _require_small_footers(footer_bytes)
        _require_alike(looked[0], each)
        row_groups += len(each.groups)
        if row_groups > ROW_GROUPS_MAX:
            raise NotStitchableError(f"row groups are more than {ROW_GROUPS_MAX}")
        end += each.copied_bytes
        copying.add(each)
    return looked


def _ending(looked: Sequence[Looked], footing: Footing) -> bytes:
    """Return what follows the bytes of pieces that have been looked at."""
    schema = arrow_schema_of(
        [(each.piece.path, each.layout.arrow_schema) for each in looked], footing
    )
    moved = [group for each in looked for group in each.groups]
    end = len(MAGIC) + sum(each.copied_bytes for each in looked)
    return ending(moved, [each.layout for each in looked], footing, schema, end)


def _require_small_footers(size_bytes: int) -> None:
    """Refuse to hold so many bytes of footers."""
    if size_bytes > FOOTERS_BYTES_MAX:
        raise NotStitchableError(f"footers take more than {FOOTERS_BYTES_MAX} bytes together")


def _require_alike(first: Looked, each: Looked) -> None:
    """Refuse pieces that do not fit together."""
    if each.layout.columns != first.layout.columns:
        message = f"files {first.piece.path} and {each.piece.path} have other columns"
        raise NotStitchableError(message)


@contextmanager
def _writing(location: Location, output: str, on_copied: OnCopied) -> Iterator[Target]:
    """Yield the output; after an error there is none."""
    with output_faults(output):
        target: Target = (LocalTarget if location.is_local else StoredTarget)(
            location, output, on_copied
        )
    try:
        yield target
    except BaseException:
        target.abandon()
        raise
