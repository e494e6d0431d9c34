"""Runs: rows by key that are merged on, in a file of the attempt's own folder.

Blocks follow each other, each an Arrow record batch compressed by LZ4. Whoever wrote them
tells where they are and which keys they hold, so there is no footer: none has to be read,
and none is held by a task that merges hundreds of runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from common.rows.key_encoding import encode_keys
from compactor.rewrite.kernel.bounds import TEXT_BYTES, Group, is_text, key_bytes
from compactor.rewrite.kernel.layout import Held, Layout
from compactor.rewrite.kernel.named_errors import NamedErrors
from compactor.rewrite.waiting import Waiting

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of a run that are read together."""

    start: int
    """Byte in the file."""
    stored_bytes: int
    rows: int
    size_bytes: int
    """Decoded, with the words of its keys."""
    low: bytes
    """The first key, encoded."""
    high: bytes
    """The last one."""


class RunWriter:
    """Writes the rows of one run, in the order in which they come."""

    def __init__(self, sink: Any, layout: Layout, block_bytes: int) -> None:
        """Write nothing yet.

        Args:
            sink: An open binary file; whoever opened it closes it.
            layout: Of the rows.
            block_bytes: Decoded bytes of a block, about.
        """
        self._sink, self._layout, self._block_bytes = sink, layout, block_bytes
        self._texts = sum(is_text(field.type) for field in layout.schema)
        self._writer = pa.ipc.new_stream(sink, layout.schema, options=_OPTIONS)
        # The columns are written before the first rows, and belong to no block.
        self._writer.write_batch(pa.RecordBatch.from_pylist([], schema=layout.schema))
        self._waiting = Waiting()
        self._blocks: list[Block] = []

    def write(self, table: pa.Table) -> None:
        """Take rows; they are written when a block is full."""
        self._waiting.add(table)
        if self._waiting.size_bytes >= self._block_bytes:
            self._write_blocks()

    def close(self) -> tuple[Block, ...]:
        """Write what is held; return where all rows are."""
        if self._waiting:
            self._write_blocks(everything=True)
        self._writer.close()
        return tuple(self._blocks)

    def _write_blocks(self, *, everything: bool = False) -> None:
        """Write full blocks; what is left over waits for more rows, or goes last."""
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
            Block(
                start=start,
                stored_bytes=self._sink.tell() - start,
                rows=rows.num_rows,
                size_bytes=batch.nbytes + row_bytes * rows.num_rows,
                low=low,
                high=high,
            )
        )


class RunReader:
    """One run, read by blocks."""

    def __init__(self, path: Path, layout: Layout, blocks: Sequence[Block]) -> None:
        """Read nothing yet.

        Args:
            path: Of the file.
            layout: Of its rows, as whoever wrote it had it.
            blocks: All of them.
        """
        self._path, self._layout, self._blocks = path, layout, blocks

    def read(self, group: Group) -> Held:
        """Return the rows of a block.

        Args:
            group: It has the block's number.

        Raises:
            InputError: They cannot be read.
        """
        block, layout = self._blocks[group.number], self._layout
        with NamedErrors(f"run {self._path}"), self._path.open("rb", buffering=0) as stored:
            stored.seek(block.start)
            content = stored.read(block.stored_bytes)
            rows = pa.table(pa.ipc.read_record_batch(pa.py_buffer(content), layout.schema))
        frame = pl.from_arrow(rows.select(layout.fast)) if layout.fast else pl.DataFrame()
        assert isinstance(frame, pl.DataFrame)
        rest = rows.select(layout.slow) if layout.slow else None
        return layout.held(frame, rest, by_key=False)


def groups_of_run(number: int, blocks: Sequence[Block]) -> list[Group]:
    """Return the blocks of a run as row groups.

    Args:
        number: Of the run among the files that are merged with it.
        blocks: In their order.
    """
    groups, start = [], 0
    for at, block in enumerate(blocks):
        groups.append(
            Group(
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
