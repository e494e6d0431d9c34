"""Compares outputs with what the inputs require, by reading them again.

Every output is read completely from its final location: pages with their checksums, keys ascending
and unique within part and tablet (except for a delete with the row that it keeps), and row counts
that add up. Column chunks must be where every reader looks for them. For append-only tables the
multiset of rows is also compared, by the sum of their hashes. The statistics of the outputs come
from this read, so metadata always matches the bytes.
"""

import math
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from common.errors import (
    AttemptCancelledError,
    RequestError,
    UnavailableError,
    VerificationError,
)
from common.parquet.file_inspection import chunk_fault, open_table_file
from common.parquet.location import Location, size_of, storage_error
from common.parquet.row_batches import open_parquet_file
from common.rows.key_encoding import encode_keys
from common.rows.merge import (
    DIGEST_MODULUS,
    digest_of,
    keys_ascend,
)
from common.rows.row_facts import RowFacts, RowTally
from common.rows.rules import RowRules, are_kept_pairs
from compactor.rewrite.file_io import table_location
from compactor.rewrite.outputs import TaskResult, WrittenFile
from compactor.rewrite.plan.rewrite_plan import Output, RewritePlan, Rules


class _ReadBack:
    """One output during the read."""

    def __init__(self, rules: Rules, output: Output, file: WrittenFile) -> None:
        self._rules, self._output = rules, output
        self._file = file
        self._tally = RowTally(rules.row_rules)
        self._last_row: pa.Table | None = None
        self.digest = 0

    def see(self, table: pa.Table) -> None:
        """Check the next rows.

        Raises:
            VerificationError: The rows are wrong.
        """
        self._tally.see(table, f"output {self._file.path}")
        rules = self._rules.row_rules
        if rules.key and table.num_rows:
            self._check_keys(table.select(rules.merge_columns), rules)
        elif not rules.key:
            self.digest = (self.digest + digest_of(table)) % DIGEST_MODULUS

    def facts(self) -> RowFacts:
        """Return the facts of all rows.

        Raises:
            VerificationError: The number of rows differs from the written one, or the range is
            wrong.
        """
        path, facts = self._file.path, self._tally.facts()
        if facts.rows != self._file.rows:
            message = f"output {path} has {facts.rows} rows, but {self._file.rows} were written"
            raise VerificationError(message)
        _require_inside(self._rules, self._output, self._file, facts)
        return facts

    def _check_keys(self, rows: pa.Table, rules: RowRules) -> None:
        """Check that keys ascend, each once except for a delete with the row that it keeps."""
        if self._last_row is not None:
            rows = pa.concat_tables([self._last_row, rows])
        keys = encode_keys(rows, rules.key, rules.key_types)
        ascend = keys_ascend(keys)
        if ascend and not keys_ascend(keys, strictly=True):
            again = pc.indices_nonzero(pc.equal(keys[:-1], keys[1:]))
            deletes, others = rows.take(again), rows.slice(1).take(again)
            ascend = are_kept_pairs(deletes, others, rules, self._rules.drop)
        if not ascend:
            message = f"output {self._file.path} does not have its keys in order, each once"
            raise VerificationError(message)
        self._last_row = rows.slice(rows.num_rows - 1)


def verify(
    plan: RewritePlan, result: TaskResult, cancelled: Callable[[], bool]
) -> tuple[tuple[int, RowFacts], ...]:
    """Check every output; return size and facts of each.

    Args:
        plan: The plan of the job.
        result: The results that the tasks report.
        cancelled: Whether the attempt was cancelled.

    Raises:
        VerificationError: Something does not add up.
        AttemptCancelledError: The attempt was cancelled.
        UnavailableError: The storage does not answer.
    """
    counts = result.counts
    if not counts.balanced or counts.rows_in != plan.inputs.rows:
        message = f"inputs have {plan.inputs.rows} rows, but these were accounted for: {counts}"
        raise VerificationError(message)
    location = table_location(plan.location)
    if result.facts is not None:
        return _verified_footers(plan, location, result)
    verified, digest = [], 0
    for file in result.files:
        output = _ReadBack(plan.rules, plan.output, file)
        size_bytes = _read_back(plan, location, file, output, cancelled)
        verified.append((size_bytes, output.facts()))
        digest = (digest + output.digest) % DIGEST_MODULUS
    rows = sum(facts.rows for _, facts in verified)
    if rows != counts.rows_out:
        message = f"outputs have {rows} rows, but {counts.rows_out} should have come out"
        raise VerificationError(message)
    if result.digest is not None and digest != result.digest:
        message = f"outputs hash to {digest:016x}, but their rows to {result.digest:016x}"
        raise VerificationError(message)
    return tuple(verified)


def _verified_footers(
    plan: RewritePlan, location: Location, result: TaskResult
) -> tuple[tuple[int, RowFacts], ...]:
    """Check outputs that tasks have already read: they must not have changed since.

    Raises:
        VerificationError: Something does not add up.
        UnavailableError: The storage does not answer.
    """
    verified = []
    for file, facts in zip(result.files, result.facts or (), strict=True):
        try:
            size_bytes = size_of(location, file.path)
            with open_table_file(location, file.path) as parquet:
                _check_footer(plan.rules, plan.output, file, parquet, size_bytes)
                rows = parquet.metadata.num_rows
        except RequestError as error:
            message = f"output {file.path} cannot be read back: {error}"
            raise VerificationError(message) from error
        if not rows == facts.rows == file.rows:
            message = f"output {file.path} has {rows} rows, but {file.rows} were written"
            raise VerificationError(message)
        _require_inside(plan.rules, plan.output, file, facts)
        verified.append((size_bytes, facts))
    if sum(facts.rows for _, facts in verified) != result.counts.rows_out:
        message = f"outputs do not have the {result.counts.rows_out} rows that should have come out"
        raise VerificationError(message)
    return tuple(verified)


def _require_inside(rules: Rules, output: Output, file: WrittenFile, facts: RowFacts) -> None:
    """Refuse an output with keys or times outside its range."""
    if output.cuts_at_s:
        _require_inside_times(output, file, facts)
    first, last = facts.key_min, facts.key_max
    if first is None or last is None:
        return
    low, high = _range_of(rules, output, file.part)
    if (low is not None and first <= low) or (high is not None and last > high):
        keys = f"{first.hex()} to {last.hex()}"
        raise VerificationError(f"output {file.path} has keys from {keys}, outside its range")


def _require_inside_times(output: Output, file: WrittenFile, facts: RowFacts) -> None:
    first, last, cuts = facts.time_min_s, facts.time_max_s, output.cuts_at_s
    if file.part > len(cuts):
        inside = first is None and last is None
    elif first is None or last is None:
        inside = False
    else:
        low = cuts[file.part - 1] if file.part else -math.inf
        high = cuts[file.part] if file.part < len(cuts) else math.inf
        inside = low <= first and last < high
    if not inside:
        raise VerificationError(
            f"output {file.path} has times from {first} to {last}, outside its part"
        )


def _read_back(
    plan: RewritePlan,
    location: Location,
    file: WrittenFile,
    output: _ReadBack,
    cancelled: Callable[[], bool],
) -> int:
    """Read a whole output and return its size."""
    try:
        size_bytes = size_of(location, file.path)
        with (
            location.filesystem.open_input_file(location.full(file.path)) as source,
            open_parquet_file(source) as parquet,
        ):
            _check_footer(plan.rules, plan.output, file, parquet, size_bytes)
            for batch in parquet.iter_batches(batch_size=plan.read_rows_max):
                if cancelled():
                    raise AttemptCancelledError("cancelled while outputs were verified")
                output.see(pa.Table.from_batches([batch]))
    except UnavailableError:
        raise
    except (OSError, pa.ArrowException, RequestError) as error:
        message = f"output {file.path} cannot be read back: {error}"
        raise storage_error(VerificationError, message, error) from error
    return size_bytes


def _check_footer(
    rules: Rules, output: Output, file: WrittenFile, parquet: pq.ParquetFile, size_bytes: int
) -> None:
    metadata = parquet.metadata.metadata or {}
    for name, value in output.footer:
        if metadata.get(name.encode()) != value.encode():
            wrong = metadata.get(name.encode())
            message = f"output {file.path} has {wrong!r} as {name}, not {value!r}"
            raise VerificationError(message)
    if not parquet.schema_arrow.equals(rules.schema):
        message = f"output {file.path} has columns {parquet.schema_arrow}, not {rules.schema}"
        raise VerificationError(message)
    if (gap := chunk_fault(parquet.metadata, size_bytes)) is not None:
        message = f"output {file.path} has rows that some readers would miss: {gap}"
        raise VerificationError(message)


def _range_of(rules: Rules, output: Output, part: int) -> tuple[bytes | None, bytes | None]:
    """Return the keys that a part may hold, `(low, high]`."""
    low = output.cuts[part - 1] if part > 0 else rules.start
    high = output.cuts[part] if part < len(output.cuts) else rules.end
    return low, high
