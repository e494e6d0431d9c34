"""Writes the outputs of a rewrite: one file per part, under its final name."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from common.errors import RewriteError
from common.model.outcome import DroppedRows
from common.parquet.location import Location
from common.parquet.write import row_group_rows
from common.rows.encode import encode_keys
from compactor.rewrite.files import NewFile, delete_file, table_location
from compactor.rewrite.plan import RewritePlan

LEVELLED_CODECS = frozenset({"zstd", "gzip", "brotli"})


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """An output as its writer remembers it."""

    part: int
    path: str
    rows: int


@contextmanager
def writing(plan: RewritePlan) -> Iterator["OutputWriter"]:
    """Yield a writer of the plan's outputs; after an error none of them is left.

    Raises:
        RewriteError: The outputs cannot be written: no space, no rights, a name taken.
    """
    writer = OutputWriter(plan)
    try:
        yield writer
    except OSError as error:
        writer.abandon()
        message = f"output {writer.path} cannot be written: {error}"
        raise RewriteError(message) from error
    except BaseException:
        writer.abandon()
        raise


class OutputWriter:
    """Takes rows in the order of keys and starts a file wherever a part begins.

    A file is closed when the next one begins, the last one by `finish`: so it carries
    what is known at the end.
    """

    def __init__(self, plan: RewritePlan) -> None:
        self._plan = plan
        self._location = table_location(plan.location)
        self._open: _OpenFile | None = None
        self._written: list[WrittenFile] = []
        self.path = plan.outputs[0]
        """The file that is, or will be, open."""

    def write(self, table: pa.Table, dropped: DroppedRows | None) -> None:
        """Write rows; they belong to the part that is open, or to later ones.

        Args:
            table: Rows in the plan's schema, in order.
            dropped: The dead rows dropped so far.
        """
        for part, rows in self._parts(table):
            if self._open is not None and self._open.part != part:
                self._close(dropped)
            if self._open is None:
                self._begin(part)
            assert self._open is not None
            self._open.write(rows)

    def finish(self, dropped: DroppedRows | None) -> tuple[WrittenFile, ...]:
        """Close the last file and return what was written.

        If there was not one row, an empty file is written in the place of the first
        part. It is no output: it tells a rebuild that the inputs are replaced by nothing.

        Args:
            dropped: All dead rows that were dropped.
        """
        if self._open is None:
            self._begin(0)
        self._close(dropped, last=True)
        return tuple(file for file in self._written if file.rows)

    def abandon(self) -> None:
        """Delete everything written so far."""
        if self._open is not None:
            self._open.abandon()
        for file in self._written:
            delete_file(self._location, file.path)

    def _begin(self, part: int) -> None:
        self.path = self._plan.outputs[part]
        self._open = _OpenFile(self._plan, self._location, part)

    def _close(self, dropped: DroppedRows | None, *, last: bool = False) -> None:
        assert self._open is not None
        # By the last file's list a rebuild knows whether an attempt has written all of them.
        outputs = [*(file.path for file in self._written), self.path] if last else None
        self._open.close(_purge_after(self._plan, dropped), outputs)
        self._written.append(WrittenFile(self._open.part, self.path, self._open.rows))
        self._open = None

    def _parts(self, table: pa.Table) -> Iterable[tuple[int, pa.Table]]:
        """Return the rows by part; ascending, since the rows are."""
        if not self._plan.cuts:
            return [(0, table)] if table.num_rows else []
        keys = encode_keys(table, self._plan.rules.key, self._plan.rules.key_types)
        pieces, start = [], 0
        for part, cut in enumerate((*self._plan.cuts, None)):
            stop = len(keys) if cut is None else _rows_up_to(keys, cut)
            if stop > start:
                pieces.append((part, table.slice(start, stop - start)))
                start = stop
        return pieces


class _OpenFile:
    """One output being written. Row groups are filled up to the wanted size."""

    def __init__(self, plan: RewritePlan, location: Location, part: int) -> None:
        self.part = part
        self.rows = 0
        self._plan = plan
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._file = NewFile(location, plan.outputs[part])
        try:
            self._writer = _parquet_writer(plan, self._file.sink)
        except BaseException:
            self._file.abandon()
            raise

    def write(self, table: pa.Table) -> None:
        """Take rows; they are written when a row group is full."""
        self.rows += table.num_rows
        self._held.append(table)
        self._held_bytes += table.nbytes
        if self._held_bytes >= self._plan.writing.row_group_bytes:
            self._write_groups()

    def close(self, purge: bytes | None, outputs: list[str] | None) -> None:
        """Write what is held and the footer; the file is whole and durable then.

        Args:
            purge: The tablet's watermark as it will be.
            outputs: For the last file of an attempt: all of them.
        """
        self._write_groups(everything=True)
        footer = {**dict(self._plan.footer), "neve.purge": purge.hex() if purge else ""}
        if outputs is not None:
            footer["neve.outputs"] = json.dumps(outputs)
        self._writer.add_key_value_metadata(footer)
        self._writer.close()
        self._file.close()

    def abandon(self) -> None:
        """Delete the file."""
        with suppress(OSError, ValueError, pa.ArrowException):
            self._writer.close()
        self._file.abandon()

    def _write_groups(self, *, everything: bool = False) -> None:
        """Write full row groups; what is left over waits for more rows, or goes last."""
        if not self._held:
            return
        rows = pa.concat_tables(self._held)
        group_rows = row_group_rows(rows, self._plan.writing.row_group_bytes)
        count = rows.num_rows if everything else rows.num_rows // group_rows * group_rows
        if count:
            self._writer.write_table(rows.slice(0, count), row_group_size=group_rows)
        rest = rows.slice(count)
        self._held, self._held_bytes = ([rest], rest.nbytes) if rest.num_rows else ([], 0)


def _parquet_writer(plan: RewritePlan, sink: object) -> pq.ParquetWriter:
    codec = plan.writing.codec.lower()
    level = plan.writing.codec_level if codec in LEVELLED_CODECS else None
    return pq.ParquetWriter(
        sink,
        plan.schema,
        compression="none" if codec == "uncompressed" else codec,
        compression_level=level,
        write_statistics=True,
        write_page_index=True,
        write_page_checksum=True,
    )


def _purge_after(plan: RewritePlan, dropped: DroppedRows | None) -> bytes | None:
    """Return the tablet's watermark as it will be after the commit."""
    known = [plan.purge, dropped.version_max if dropped else None]
    return max((version for version in known if version is not None), default=None)


def _rows_up_to(keys: pa.LargeBinaryArray, cut: bytes) -> int:
    below = pc.less_equal(keys, pa.scalar(cut, pa.large_binary()))
    return int(np.count_nonzero(below.to_numpy(zero_copy_only=False)))
