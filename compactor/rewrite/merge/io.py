"""The reads and writes of a merge: runs, throttled inputs, decoding and encoding in threads.

  decode (two threads) ──► words, winners, gather (two) ──► encode, write (a thread)

Decoding, sorting and encoding release Python's lock, so one task uses about two cores. Every read
of a table's file is paid for from the attempt's allowance. Small files are decoded together. Runs
are files in the attempt's own folder and are not paid for.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import polars as pl
import pyarrow as pa

from common.parquet.location import Location
from common.rows.conform import Flags
from common.rows.key_encoding import Fill, encode_keys
from compactor.rewrite.attempt_folder import Allowance
from compactor.rewrite.file_io import leaf_columns, stored_bytes
from compactor.rewrite.kernel.normalized_keys import (
    TEXT_BYTES,
    RowGroup,
    is_text,
    key_bytes,
)
from compactor.rewrite.kernel.range_merge import RowGroupReader
from compactor.rewrite.kernel.reader import FileErrors, Reader, RowGroupChange
from compactor.rewrite.kernel.winners import (
    DecodedRows,
    RowLayout,
    known_to_polars,
)
from compactor.rewrite.memory_budget import MERGE_CORES, MemoryInUse
from compactor.rewrite.outputs import RowBuffer
from compactor.rewrite.parquet_bytes.sources import (
    FIRST_BYTES,
    PAGES_START,
    PageError,
    check_pages,
    has_checksum,
)

# --------------------------------------------------------------------------------------------- Runs


_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class RunBlock:
    """Rows of a run that are read together."""

    start: int
    """First byte in the file."""
    stored_bytes: int
    rows: int
    size_bytes: int
    """Decoded size, with the words of its keys."""
    low: bytes
    """The first key, encoded."""
    high: bytes
    """The last key, encoded."""


class RunWriter:
    """Writes the rows of one run, in arrival order."""

    def __init__(self, sink: Any, layout: RowLayout, block_bytes: int) -> None:
        """Create a writer.

        Args:
            sink: An open binary file; the caller closes it.
            layout: Layout of the rows.
            block_bytes: Approximate decoded size of a block.
        """
        self._sink, self._layout, self._block_bytes = sink, layout, block_bytes
        self._texts = sum(is_text(field.type) for field in layout.schema)
        self._writer = pa.ipc.new_stream(sink, layout.schema, options=_OPTIONS)
        # The schema is written before the first rows, and belongs to no block.
        self._writer.write_batch(pa.RecordBatch.from_pylist([], schema=layout.schema))
        self._waiting = RowBuffer()
        self._blocks: list[RunBlock] = []

    def write(self, table: pa.Table) -> None:
        """Add rows; they are written when a block is full."""
        self._waiting.add(table)
        if self._waiting.size_bytes >= self._block_bytes:
            self._write_blocks()

    def close(self) -> tuple[RunBlock, ...]:
        """Write the remaining rows; return all blocks."""
        if self._waiting:
            self._write_blocks(everything=True)
        self._writer.close()
        return tuple(self._blocks)

    def _write_blocks(self, *, everything: bool = False) -> None:
        """Write full blocks; remaining rows wait for more, or are written last."""
        rows, count, block_rows = self._waiting.take(self._block_rows, everything=everything)
        for at in range(0, count, block_rows):
            self._write_block(rows.slice(at, min(block_rows, count - at)))

    def _block_rows(self, rows: pa.Table) -> int:
        return int(max(1, self._block_bytes * rows.num_rows // max(1, rows.nbytes)))

    def _write_block(self, rows: pa.Table) -> None:
        rules = self._layout.rules
        ends = rows.select(rules.key).take(pa.array([0, rows.num_rows - 1]))
        low, high = encode_keys(ends, rules.key, rules.key_types).to_pylist()
        (batch,) = rows.combine_chunks().to_batches()
        start = self._sink.tell()
        self._writer.write_batch(batch)
        row_bytes = TEXT_BYTES * self._texts + key_bytes(low, high)
        self._blocks.append(
            RunBlock(
                start=start,
                stored_bytes=self._sink.tell() - start,
                rows=rows.num_rows,
                size_bytes=batch.nbytes + row_bytes * rows.num_rows,
                low=low,
                high=high,
            )
        )


class RunReader:
    """One run, read in blocks."""

    def __init__(self, path: Path, layout: RowLayout, blocks: Sequence[RunBlock]) -> None:
        """Create a reader without reading.

        Args:
            path: Path of the file.
            layout: Layout of its rows, as its writer used it.
            blocks: All its blocks.
        """
        self._path, self._layout, self._blocks = path, layout, blocks

    def read(self, group: RowGroup) -> DecodedRows:
        """Return the rows of a block.

        Args:
            group: A row group with the block's number.

        Raises:
            InputError: They cannot be read.
        """
        block, layout = self._blocks[group.number], self._layout
        with FileErrors(f"run {self._path}"), self._path.open("rb", buffering=0) as stored:
            stored.seek(block.start)
            content = stored.read(block.stored_bytes)
            rows = pa.table(pa.ipc.read_record_batch(pa.py_buffer(content), layout.schema))
        frame = pl.from_arrow(rows.select(layout.fast)) if layout.fast else pl.DataFrame()
        assert isinstance(frame, pl.DataFrame)
        rest = rows.select(layout.slow) if layout.slow else None
        return layout.held(frame, rest, by_key=False)


def groups_of_run(number: int, blocks: Sequence[RunBlock]) -> list[RowGroup]:
    """Return the blocks of a run as row groups.

    Args:
        number: Number of the run among the files that are merged with it.
        blocks: Its blocks in order.
    """
    groups, start = [], 0
    for at, block in enumerate(blocks):
        groups.append(
            RowGroup(
                input=number,
                number=at,
                start=start,
                rows=block.rows,
                size_bytes=block.size_bytes,
                low=block.low,
                high=block.high,
            )
        )
        start += block.rows
    return groups


# ---------------------------------------------------------------------------------- Throttled reads


class ThrottledReader(Reader):
    """Pays for each row group before it is read, or after a read that included the footer."""

    def __init__(
        self,
        allowance: Allowance,
        location: Location,
        path: str,
        layout: RowLayout,
        fill: Fill,
        *,
        change: RowGroupChange | None = None,
        copied: bool = False,
    ) -> None:
        """Look at the file's columns; see `Reader`.

        Args:
            allowance: Allowance of the attempt.
            location: Location of the file.
            path: Path relative to it.
            layout: Wanted layout of its rows.
            fill: Values that its folders give.
            change: Change of its rows; None: none.
            copied: Whether row groups are copied afterwards: their keys are read without payment,
                and `pay` pays for all columns.
        """
        super().__init__(location, path, layout, fill, change)
        self._allowance = allowance
        self._copied = copied
        self._leaves: list[int] | None = None

    def read(self, group: RowGroup, *, by_key: bool = True) -> DecodedRows:
        """Return the rows of a row group, after the grant has paid for them."""
        if self._copied or group.skip:
            return super().read(group, by_key=by_key)  # Its first piece has paid for all pieces.
        has_footer = self._metadata is not None
        if has_footer:
            self.pay(group)
        held = super().read(group, by_key=by_key)
        if not has_footer:
            self.pay(group)
        return held

    def pay(self, group: RowGroup) -> None:
        """Pay for a row group of a file whose footer is known."""
        assert self._metadata is not None
        if self._leaves is None:
            columns = None if self._copied else tuple(self.layout.schema.names)
            self._leaves = leaf_columns(self._metadata, columns)
        self._allowance.pay(stored_bytes(self._metadata, group.number, self._leaves))


# -------------------------------------------------------------------- Small files, decoded together


BATCH_FILES_MAX = 64


class BatchedReader:
    """Reads the row groups of several small files in one call."""

    def __init__(
        self,
        location: Location,
        paths: Mapping[int, str],
        layout: RowLayout,
        small: Mapping[int, int],
        allowance: Allowance,
        *,
        change: RowGroupChange | None = None,
        by_key: bool = True,
    ) -> None:
        """Create a reader without reading.

        Args:
            location: Location of all files.
            paths: Paths of the files, by number.
            layout: Wanted layout of rows.
            small: Bytes of the small, plain files, by number; see `Inputs`.
            allowance: Pays for the reads.
            change: Change of their rows; None: none.
            by_key: Whether rows must be in key order.
        """
        polars_reads = location.is_local and all(map(known_to_polars, layout.schema.types))
        self._small = small if polars_reads else {}
        self._location, self._paths, self._layout = location, paths, layout
        self._allowance, self._by_key, self._change = allowance, by_key, change

    def accepts(self, group: RowGroup) -> bool:
        """Return whether a row group may be read with others."""
        return group.input in self._small and group.start == 0 == group.skip

    def read(self, groups: Sequence[RowGroup]) -> list[DecodedRows] | None:
        """Return the rows of row groups, in order; None: they have to be read one by one.

        Row groups with unknown keys are all held before any of their rows is merged, so their rows
        are returned with the first one: merging a few long runs is cheaper.
        """
        self._allowance.pay(sum(self._small[group.input] for group in groups))
        paths = [Path(self._location.full(self._paths[group.input])) for group in groups]
        names = self._layout.schema.names
        try:
            for path, group in zip(paths, groups, strict=True):
                _check_pages_of_file(path, self._small[group.input])
            frame = pl.scan_parquet(paths, glob=False).select(names).collect()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, PageError):
            return None  # A separate read gives the precise error.
        right = frame.dtypes == [self._layout.dtype(name) for name in names]
        if not right or frame.height != sum(group.rows for group in groups):
            return None
        affected = None
        if self._change is not None:
            frame, _, affected = self._change.apply(frame, None, groups)
        if all(group.low is None for group in groups):
            return self._united(frame, groups, affected)
        return self._layout.held_apart(frame, [group.rows for group in groups], affected)

    def _united(
        self, frame: pl.DataFrame, groups: Sequence[RowGroup], affected: Flags | None
    ) -> list[DecodedRows]:
        if self._by_key:
            frame = (
                frame.rechunk()
            )  # A gather from many chunks costs several times as much as the copy.
        whole = self._layout.held(frame, None, by_key=self._by_key, affected=affected)
        whole.size_bytes = max(whole.size_bytes, sum(group.size_bytes for group in groups))
        nothing = self._layout.held(frame.clear(), None, by_key=False)
        return [whole, *(replace(nothing) for _ in groups[1:])]


def _check_pages_of_file(path: Path, size_bytes: int) -> None:
    """Verify the checksums of all pages of a small file, if the first of them has one.

    Raises:
        PageError: A checksum is wrong.
        OSError: It cannot be read.
    """
    with path.open("rb", buffering=0) as stored:
        first = os.pread(stored.fileno(), min(FIRST_BYTES, size_bytes), PAGES_START)
        if has_checksum(first):
            check_pages(os.pread(stored.fileno(), size_bytes, PAGES_START))


# ------------------------------------------------------------- Decoding ahead, encoding afterwards


PREFETCH_BYTES_MAX = 96 * 1024**2
"""Largest decoded size ahead of the merge."""
UNWRITTEN_BYTES_MAX = 16 * 1024**2
"""Largest size of rows waiting for the encoder, without those being encoded and one step."""


def reading_order(groups: Iterable[RowGroup]) -> list[RowGroup]:
    """Return row groups in the order in which a merge reads them."""
    # A merge takes the last of the row groups in descending order, so ties are reversed.
    return sorted(groups, key=lambda group: group.low or b"", reverse=True)[::-1]


class Prefetcher:
    """Decodes row groups of all inputs in threads before the merge reads them."""

    def __init__(
        self,
        readers: Mapping[int, RowGroupReader],
        groups: Iterable[RowGroup],
        room: MemoryInUse,
        batched: BatchedReader | None = None,
    ) -> None:
        """Start decoding.

        Args:
            readers: Readers of all inputs, by number.
            groups: Row groups in reading order; any other order is correct, but slow.
            room: Memory that may be decoded in addition to what the merge holds.
            batched: Reads small files, many in one call.
        """
        self._readers = readers
        self._not_begun = deque(groups)
        self._threads = ThreadPoolExecutor(MERGE_CORES, "decode")
        self._batched = batched
        self._ready: dict[RowGroup, Future[dict[RowGroup, DecodedRows]]] = {}
        self._room = room
        self._ahead_bytes = 0
        self._fill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def read(self, group: RowGroup) -> DecodedRows:
        """Return the rows of a row group; see `Reader.read`."""
        ready = self._ready.pop(group, None)
        if ready is not None:
            held = ready.result()[group]
            self._ahead_bytes -= group.size_bytes
        else:
            if group in self._not_begun:
                self._not_begun.remove(group)
            held = self._threads.submit(self._decoded, [group]).result()[group]
        # Polars does not count the unused parts of pages that hold its texts.
        if held.rows:
            held.size_bytes = max(held.size_bytes, group.size_bytes)
        self._room.held_bytes += held.size_bytes
        self._fill()
        return held

    def _fill(self) -> None:
        """Make the threads decode row groups for which there is room."""
        while batch := self._next_batch():
            decoding = self._threads.submit(self._decoded, batch)
            self._ready |= dict.fromkeys(batch, decoding)

    def _next_batch(self) -> list[RowGroup]:
        """Return row groups for which there is room: one, or several of small files."""
        batch: list[RowGroup] = []
        bytes_max = min(self._room.free_bytes, PREFETCH_BYTES_MAX)
        while self._not_begun and self._ahead_bytes + self._not_begun[0].size_bytes <= bytes_max:
            small = self._batched is not None and self._batched.accepts(self._not_begun[0])
            if batch and (not small or len(batch) == BATCH_FILES_MAX):
                break
            if not batch and small and self._ready and 2 * self._ahead_bytes > bytes_max:
                break  # Prefer a larger batch soon.
            batch.append(self._not_begun.popleft())
            self._ahead_bytes += batch[-1].size_bytes
            if not small:
                break
        return batch

    def _decoded(self, batch: list[RowGroup]) -> dict[RowGroup, DecodedRows]:
        if len(batch) > 1 and self._batched is not None:
            batch_rows = self._batched.read(batch)
            if batch_rows is not None:
                return dict(zip(batch, batch_rows, strict=True))
        return {group: self._readers[group.input].read(group) for group in batch}


class AsyncWriter:
    """Runs calls about rows in a thread, one after the other; few of them wait."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "encode")
        self._waiting: deque[tuple[Future[None], int]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def submit(self, work: Callable[..., None], rows: pa.Table, *more: Any) -> None:
        """Queue a call after the earlier ones.

        Raises:
            Exception: The error of an earlier call.
        """
        while sum(size_bytes for _, size_bytes in self._waiting) > UNWRITTEN_BYTES_MAX:
            self._next()
        self._waiting.append((self._thread.submit(work, rows, *more), rows.get_total_buffer_size()))

    def wait(self) -> None:
        """Wait for all calls.

        Raises:
            Exception: The error of one of them.
        """
        while self._waiting:
            self._next()

    def _next(self) -> None:
        done, _ = self._waiting.popleft()
        done.result()
