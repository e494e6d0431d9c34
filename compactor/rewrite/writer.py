"""Writes the outputs of a rewrite: one file per part, under its final name."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import RewriteError, UnavailableError
from common.model.outcome import DroppedRows
from common.parquet.location import Location, is_silence
from common.rows.key_encoding import encode_keys
from common.rows.row_facts import greatest
from compactor.rewrite.allowance import allowance_of
from compactor.rewrite.files import NewFile, delete_file, table_location
from compactor.rewrite.plan import RewritePlan
from compactor.rewrite.row_groups import RowGroups


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
        UnavailableError: The storage does not answer.
    """
    writer = OutputWriter(plan)
    try:
        yield writer
    except OSError as error:
        writer.abandon()
        message = f"output {writer.path} cannot be written: {error}"
        raise (UnavailableError if is_silence(error) else RewriteError)(message) from error
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
        self._open.close(purge_after(self._plan, dropped), outputs)
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
    """One output being written."""

    def __init__(self, plan: RewritePlan, location: Location, part: int) -> None:
        self.part = part
        self._plan = plan
        self._file = NewFile(location, plan.outputs[part])
        self._groups = RowGroups(self._file.sink, plan.schema, plan.writing, plan.rules.key)
        self._allowance, self._paid_bytes = allowance_of(plan.progress_folder), 0

    @property
    def rows(self) -> int:
        """How many it has so far."""
        return self._groups.rows

    def write(self, table: pa.Table) -> None:
        """Take rows; they are written when a row group is full."""
        self._groups.write(table)
        self._pay()

    def close(self, purge: bytes | None, outputs: list[str] | None) -> None:
        """Write what is held and the footer; the file is whole and durable then.

        Args:
            purge: The tablet's watermark as it will be.
            outputs: For the last file of an attempt: all of them.
        """
        self._groups.close(footer_of(self._plan, purge, outputs))
        self._pay()
        self._file.close()
        self._allowance.synced(self._paid_bytes, self._file.sync_s)

    def abandon(self) -> None:
        """Delete the file."""
        self._groups.abandon()
        self._file.abandon()

    def _pay(self) -> None:
        """Pay for what was written since: nobody knows the size of a row group before."""
        written_bytes = self._file.sink.tell()
        if written_bytes > self._paid_bytes:
            self._allowance.pay(written_bytes - self._paid_bytes)
            self._paid_bytes = written_bytes
            self._file.reached(written_bytes)


def footer_of(
    plan: RewritePlan, purge: bytes | None, outputs: Sequence[str] | None
) -> dict[str, str]:
    """Return the key-value metadata of an output.

    Args:
        plan: Whose.
        purge: The tablet's watermark as it will be.
        outputs: For the last file of an attempt: all of them.
    """
    footer = {**dict(plan.footer), "neve.purge": purge.hex() if purge else ""}
    return footer if outputs is None else footer | {"neve.outputs": json.dumps(list(outputs))}


def purge_after(plan: RewritePlan, dropped: DroppedRows | None) -> bytes | None:
    """Return the tablet's watermark as it will be after the commit."""
    return greatest((plan.purge, dropped.version_max if dropped else None))


def _rows_up_to(keys: pa.LargeBinaryArray, cut: bytes) -> int:
    below = pc.less_equal(keys, pa.scalar(cut, pa.large_binary()))
    return int(np.count_nonzero(below.to_numpy(zero_copy_only=False)))
