"""The plan of a rewrite, derived from the assignment and the inputs' footers.

A plan is a value that goes to Spark's tasks unchanged and contains everything that they need. It
has four parts: the files to read (`Inputs`), the effect on rows (`Rules`), the files to write
(`Output`), and limits for tasks (`MemoryBudget`). A function takes the part that it uses.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import InputError, RequestError, RewriteError, TransformError
from common.expressions import parse_predicate
from common.expressions.clauses import (
    Transform,
    parse_transform,
    protected_columns,
)
from common.expressions.file_pruning import ColumnBounds, may_be_true
from common.model.file import DataFile
from common.model.request import KeyRange, TransformKind
from common.model.table import Column, Table
from common.parquet.file_inspection import codec_name
from common.rows.conform import Flags
from common.rows.key_encoding import encode_keys
from common.rows.merge import inside
from common.rows.row_facts import RowFacts
from common.rows.rules import DropRule, RowRules, keeps_deleted_rows, may_expire
from common.rows.schema import arrow_schema, columns_of, normal_field, unite_schemas
from common.wire import Assignment
from compactor.rewrite.file_io import table_location
from compactor.rewrite.kernel.normalized_keys import RowGroup
from compactor.rewrite.memory_budget import TASK_BYTES, MemoryBudget, memory_budget, rows_at_a_time
from compactor.rewrite.plan.inputs import (
    FooterQuery,
    InputFooter,
    OutputSettings,
    clean_facts,
    estimate_decoded_bytes,
    output_settings,
    read_footers,
    require_inputs_unchanged,
    worth_copying,
)

if TYPE_CHECKING:
    from common.expressions.native import Evaluation

# ----------------------------------------------------------------------------------- Transform plan
# The effect of a job's request on its inputs, as a value for Spark's tasks.
#
# The value determines which rows a transform affects.


# ------------------------------------------------------------------------------------ Affected rows


def matched_rows(
    rows: pa.Table, rules: RowRules, key_range: KeyRange, cancelled: Sequence[KeyRange] = ()
) -> Flags:
    """Return the rows that a transform applies to: in the range, not cancelled, no tombstones.

    Expired rows are included, because they would reappear if the table's TTL became longer.

    Args:
        rows: Rows with at least the columns of key and tombstone.
        rules: Rules of the table.
        key_range: Range of the request.
        cancelled: Ranges that a user has cancelled.
    """
    flags = np.ones(rows.num_rows, np.bool_)
    if rules.tombstone_column is not None:
        flags &= ~_flags(pc.fill_null(rows.column(rules.tombstone_column), fill_value=False))
    if rules.key and (key_range != KeyRange() or cancelled) and rows.num_rows:
        keys = encode_keys(rows, rules.key, rules.key_types)
        flags &= _flags(inside(keys, key_range))
        for part in cancelled:
            flags &= ~_flags(inside(keys, part))
    return flags


def _flags(column: pa.Array | pa.ChunkedArray) -> Flags:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    flags: Flags = array.to_numpy(zero_copy_only=False)
    return flags


# --------------------------------------------------------------------------- The transform of a job


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformPlan:
    """The transform of one job."""

    transform: Transform
    request: str
    table: Table
    key_range: KeyRange
    """Rows outside are unchanged, whatever file holds them."""
    inputs: frozenset[int]
    """Numbers of the inputs that it has not been applied to; never empty."""
    now_s: float
    cancelled: tuple[KeyRange, ...] = ()
    """Cancelled ranges: rows there are unchanged as well."""
    native: bool = False
    """Whether the kernel evaluates its expressions, without Spark."""

    def matched_rows(self, rows: pa.Table, rules: RowRules) -> Flags:
        """Return the rows that it applies to.

        Args:
            rows: Rows with at least the columns of key and tombstone.
            rules: Rules of the table.
        """
        return matched_rows(rows, rules, self.key_range, self.cancelled)

    def matched_by(self, rules: RowRules) -> frozenset[str]:
        """Return the columns that decide to which rows it applies."""
        has_range = self.key_range != KeyRange() or bool(self.cancelled)
        names = {rules.tombstone_column, *(rules.key if has_range else ())}
        return frozenset(name for name in names if name is not None)

    @property
    def now_us(self) -> int:
        """The value of `now()` for every row, in microseconds since the epoch."""
        return round(self.now_s * 1_000_000)

    @property
    def protected(self) -> frozenset[str]:
        """Columns that keep their values, even in deleted rows."""
        return protected_columns(self.table)

    @property
    def asks_spark(self) -> bool:
        """Whether it has expressions; Spark evaluates them if the kernel does not."""
        return bool(self.transform.expressions)

    @property
    def deletes(self) -> bool:
        """Whether it deletes the rows for which a predicate is true."""
        return self.transform.kind is TransformKind.DELETE_WHERE

    @property
    def may_delete(self) -> bool:
        """Whether it may delete rows: by a predicate, or as a plug-in."""
        return self.deletes or not self.asks_spark

    def evaluations(self, schema: pa.Schema) -> "tuple[Evaluation, ...] | None":
        """Return how Polars evaluates its expressions; None: it cannot.

        Args:
            schema: Schema of the rows.
        """
        # Here: tasks that store values of expressions do not load Polars.
        from common.expressions.native import native_predicate, native_value
        from compactor.rewrite.kernel.winners import polars_types

        types, transform = polars_types(schema), self.transform
        evaluations: list[Evaluation | None] = [None]
        if transform.predicate is not None:
            evaluations = [native_predicate(transform.predicate.node, types, self.now_us)]
        elif transform.assignments:
            evaluations = [
                native_value(one.expression.node, types[one.column], types, self.now_us)
                if one.column in types
                else None
                for one in transform.assignments
            ]
        native = tuple(evaluation for evaluation in evaluations if evaluation is not None)
        return native if len(native) == len(evaluations) else None

    def may_affect(self, group: RowGroup, bounds: Mapping[str, ColumnBounds]) -> bool:
        """Return whether it may change a row of a row group.

        Args:
            group: The row group.
            bounds: Bounds of its columns, as far as statistics show them.
        """
        if group.input not in self.inputs:
            return False
        start, until = self.key_range.start, self.key_range.until
        if start is not None and group.high is not None and group.high < start:
            return False
        if until is not None and group.low is not None and group.low >= until:
            return False
        if not self.deletes or self.transform.predicate is None:
            return True
        return may_be_true(self.transform.predicate.text, bounds, self.now_us)


def make_transform(assignment: Assignment, schema: pa.Schema) -> TransformPlan | None:
    """Return the effect of the job's request on its inputs; None: no effect.

    Args:
        assignment: The reserved job.
        schema: Schema of the rows, as they will be merged.

    Raises:
        RewriteError: The request is missing, or is a different one.
        TransformError: It does not fit the rows.
    """
    request, wanted = assignment.request, assignment.reservation.request
    if (request.id if request is not None else None) != wanted:
        # Otherwise outputs would carry the request, and the transform would never be applied.
        origin = f"came with {request.id}" if request is not None else "came without it"
        raise RewriteError(f"job {assignment.job.id} belongs to request {wanted}, but {origin}")
    if request is None:
        return None
    try:
        transform = parse_transform(
            request.transform, assignment.table, request.range, columns_of(schema)
        )
    except RequestError as error:
        raise TransformError(f"request {request.id}: {error}") from error
    inputs = frozenset(
        at for at, file in enumerate(assignment.inputs) if file.request != request.id
    )
    if transform is None or not inputs:
        return None
    plan = TransformPlan(
        transform=transform,
        request=request.id,
        table=assignment.table,
        key_range=request.range,
        inputs=inputs,
        now_s=assignment.reservation.now_s,
        cancelled=request.cancelled_ranges,
    )
    return replace(plan, native=plan.evaluations(schema) is not None)


# ------------------------------------------------------------------------------------- Rewrite plan


FOOTER_FORMAT = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The files that a rewrite reads. Inputs have numbers: their indexes in `paths`."""

    paths: tuple[str, ...]
    """Paths relative to the table's location."""
    rows: int
    """Rows of all inputs, from their footers."""
    decoded_bytes: int
    """Bytes of all rows, from the footers and, unless they are copied, a sample of texts."""
    footer_bytes: int
    """Bytes of the footers of all inputs."""
    row_groups: tuple[RowGroup, ...] = ()
    """Row groups of all inputs of a keyed table, from their footers."""
    clean: Mapping[int, RowFacts] = field(default_factory=dict)
    """Facts of inputs whose keys ascend and whose rows are all alive, by number. Their row groups
    may be copied if they overlap no others."""
    small: Mapping[int, int] = field(default_factory=dict)
    """Bytes of inputs with one small row group and exactly the columns of the outputs, by
    number."""
    matching: frozenset[int] = frozenset()
    """Inputs with the columns, codec and Bloom filters of the outputs, whatever Arrow's types."""
    worth_stitching: bool = False
    """Whether the row groups of all inputs together are large enough to be copied."""
    timed: bool = False
    """Whether every row has a time, from the footers; only determined where rows expire."""

    @property
    def row_bytes(self) -> float:
        """Average decoded size of a row."""
        return self.decoded_bytes / max(1, self.rows)

    def only(self, numbers: Iterable[int]) -> Self:
        """Return the totals, and the sizes of small inputs with these numbers.

        A task needs the sizes of its own inputs only.

        Args:
            numbers: Numbers of the task's inputs.
        """
        small = {number: self.small[number] for number in numbers if number in self.small}
        return replace(self, paths=(), row_groups=(), clean={}, small=small, matching=frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The effect of a rewrite on rows."""

    schema: pa.Schema
    """Schema of the outputs: the union of the table's and all inputs'."""
    row_rules: RowRules
    now_s: float
    drop: DropRule
    start: bytes | None
    end: bytes | None
    """Keys of the tablet are in `(start, end]`; both None: any key."""
    transform: TransformPlan | None = None
    """Change of the rows by the job's request, before they are merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The files that a rewrite writes."""

    paths: tuple[str, ...]
    """One path per part, relative to the table's location; a part without rows has no file."""
    cuts: tuple[bytes, ...]
    """Part n ends with key `cuts[n]`; the last part has no end."""
    settings: OutputSettings
    footer: tuple[tuple[str, str], ...]
    """Key-value metadata of every output, without entries that are known only at its end."""
    purge: bytes | None = None
    part_rows: int = 0
    """Rows of a part of a table without a key; 0: all rows are one part."""
    cuts_at_s: tuple[float, ...] = ()
    """Times at which parts of a table without a key begin. Part 0 ends before the first of them;
    rows without a time form the part after the last. A part may have several files."""
    file_rows_max: int = 0
    """With `cuts_at_s`: largest number of rows of one file; 0: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewritePlan:
    """One rewrite."""

    location: str
    """Location of the table."""
    folder: str
    """The attempt's folder, where tasks report their progress; or empty."""
    inputs: Inputs
    rules: Rules
    output: Output
    memory: MemoryBudget
    """Limits on what one task may hold."""

    @property
    def read_rows_max(self) -> int:
        """Rows that are read at a time when all columns are held."""
        return rows_at_a_time(self.inputs.row_bytes, self.memory)


def make_plan(
    assignment: Assignment,
    folder: str = "",
    task: tuple[int, int] = (TASK_BYTES, 0),
    on_read: Callable[[], None] = lambda: None,
) -> RewritePlan:
    """Return the plan of an assignment, after reading every input's footer.

    Args:
        assignment: The reserved job.
        folder: See `RewritePlan`.
        task: Memory of a task's process, and the limit at which it is ended; 0: no limit.
        on_read: Called after each footer, possibly in several threads.

    Raises:
        InputError: An input is missing, unreadable or does not fit the others.
        RewriteError: There are more parts than reserved outputs, or the request does not fit.
        PluginError: The table's configurer misbehaved.
    """
    table = assignment.table
    location = table_location(table.location)
    paths = [file.path for file in assignment.inputs]
    settings = output_settings(assignment)
    time = table.time_column if table.settings.ttl_s is not None else None
    bounded = _bounded_columns(assignment)
    query = FooterQuery(table.key, settings.bloom_columns, time, bounded)
    footers = dict(zip(paths, read_footers(location, paths, query, on_read), strict=True))
    require_inputs_unchanged(location, assignment, footers)
    memory = memory_budget(task[0], assignment.halvings, settings.row_group_bytes, task[1])
    schema = _united_schema(assignment, {path: footer.schema for path, footer in footers.items()})
    row_rules = _row_rules(assignment, schema)
    rules = _rules(assignment, schema, row_rules)
    rows = sum(footer.num_rows for footer in footers.values())
    plan = RewritePlan(
        location=table.location,
        folder=folder,
        inputs=Inputs(
            paths=tuple(footers),
            rows=rows,
            decoded_bytes=sum(footer.decoded_bytes for footer in footers.values()),
            footer_bytes=sum(footer.size_bytes for footer in footers.values()),
            row_groups=tuple(
                replace(group, affected=_may_affect(rules.transform, group, footer))
                for footer in footers.values()
                for group in footer.groups
            ),
            clean=_clean_inputs(assignment, row_rules, schema),
            small=_small_inputs(footers.values(), schema),
            matching=_matching_inputs(footers.values(), schema, settings),
            worth_stitching=worth_copying(
                [size for footer in footers.values() for size in footer.sizes], settings
            ),
            timed=all(footer.timed for footer in footers.values()),
        ),
        rules=rules,
        output=_output(assignment, rows, replace(settings, row_group_bytes=memory.group_bytes)),
        memory=memory,
    )
    # No row is decoded. A keyed job whose row groups cannot be copied after all has to fit memory.
    if not table.key and copied_inputs(plan, assignment) is not None:
        return plan
    decoded_bytes = estimate_decoded_bytes(location, footers)
    return replace(plan, inputs=replace(plan.inputs, decoded_bytes=decoded_bytes))


def copied_inputs(plan: RewritePlan, assignment: Assignment) -> tuple[DataFile, ...] | None:
    """Return the inputs in the order of their rows if all row groups may be copied as they are.

    Returns:
        The inputs; None: their rows may overlap, expire or change, or are stored in another way.
    """
    if len(plan.inputs.matching) < len(plan.inputs.paths) or not plan.inputs.worth_stitching:
        return None
    files = assignment.inputs
    requested_level = plan.output.settings.codec_level != assignment.table.settings.codec_level
    if (
        plan.rules.transform is not None
        or len(plan.output.paths) > 1
        or requested_level
        or not plan.inputs.rows
    ):
        return None
    if may_expire(files, plan.rules.row_rules, plan.rules.schema, plan.rules.now_s):
        return None
    if not plan.rules.row_rules.key:
        return files
    if any(not file.clean or file.key_min is None or file.key_max is None for file in files):
        return None
    ordered = sorted(files, key=lambda file: file.key_min or b"")
    bounds = [(file.key_min or b"", file.key_max or b"") for file in ordered]
    disjoint = all(before[1] < after[0] for before, after in pairwise(bounds))
    in_bounds = (plan.rules.start is None or plan.rules.start < bounds[0][0]) and (
        plan.rules.end is None or bounds[-1][1] <= plan.rules.end
    )
    return tuple(ordered) if disjoint and in_bounds else None


def _bounded_columns(assignment: Assignment) -> tuple[Column, ...]:
    """Return the columns whose bounds may show that a row group has no row to delete."""
    request, table = assignment.request, assignment.table
    if request is None or request.transform.kind is not TransformKind.DELETE_WHERE:
        return ()
    try:
        names = parse_predicate(request.transform.text, table.schema).columns
    except RequestError:
        return ()  # Refused later, with all columns of the inputs.
    return tuple(column for column in table.schema if column.name in names)


def _may_affect(transform: TransformPlan | None, group: RowGroup, footer: InputFooter) -> bool:
    return transform is not None and transform.may_affect(group, footer.bounds[group.number])


def _output(assignment: Assignment, rows: int, settings: OutputSettings) -> Output:
    job, parts, cuts_at_s = assignment.job, _parts(assignment), _cuts_at_s(assignment)
    whole = bool(assignment.table.key) or parts == 1 or bool(cuts_at_s)
    return Output(
        paths=_output_paths(assignment, parts),
        cuts=job.cuts,
        settings=settings,
        footer=_footer(assignment),
        purge=assignment.purge,
        part_rows=0 if whole else -(-rows // parts),
        cuts_at_s=cuts_at_s,
        file_rows_max=job.output_rows_max if cuts_at_s else 0,
    )


def _rules(assignment: Assignment, schema: pa.Schema, row_rules: RowRules) -> Rules:
    bounds = assignment.bounds
    whole = bounds.partition is not None
    return Rules(
        schema=schema,
        row_rules=row_rules,
        now_s=assignment.reservation.now_s,
        drop=DropRule(
            assignment.settled,
            assignment.outside,
            keeps_deleted=keeps_deleted_rows(assignment.table),
        ),
        start=None if whole else bounds.start,
        end=None if whole else bounds.end,
        transform=make_transform(assignment, schema),
    )


def _small_inputs(footers: Iterable[InputFooter], schema: pa.Schema) -> dict[int, int]:
    return {
        at: footer.small_bytes
        for at, footer in enumerate(footers)
        if footer.small_bytes is not None and footer.schema.equals(schema)
    }


def _clean_inputs(
    assignment: Assignment, rules: RowRules, schema: pa.Schema
) -> dict[int, RowFacts]:
    """Return the facts of inputs whose rows are all unique and alive, from their metadata."""
    level_requested = (
        assignment.request is not None and assignment.request.output.codec_level is not None
    )
    if level_requested or rules.partition_by:
        return {}  # Footers do not have the level; columns may be given by folders.
    return clean_facts(assignment.inputs, rules, schema, assignment.reservation.now_s)


def _matching_inputs(
    footers: Iterable[InputFooter], schema: pa.Schema, settings: OutputSettings
) -> frozenset[int]:
    wanted = {codec_name(settings.codec)}
    return frozenset(
        at
        for at, footer in enumerate(footers)
        if footer.codecs <= wanted
        and footer.filtered
        and (footer.schema.equals(schema) or _normal_schema(footer.schema).equals(schema))
    )


def _normal_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema(list(map(normal_field, schema)))


def _united_schema(assignment: Assignment, schemas: dict[str, pa.Schema]) -> pa.Schema:
    sources = [("table schema", arrow_schema(assignment.table.schema))]
    for path, schema in schemas.items():
        # Of thousands of files, nearly all have the same schema as the one before.
        if not sources[-1][1].equals(schema):
            sources.append((f"file {path}", schema))
    try:
        return unite_schemas(sources)
    except RequestError as error:
        raise InputError(str(error)) from error


def _row_rules(assignment: Assignment, schema: pa.Schema) -> RowRules:
    table = assignment.table
    return RowRules(
        schema=columns_of(schema),
        key=table.key,
        version_column=table.version_column,
        tombstone_column=table.tombstone_column,
        time_column=table.time_column,
        ttl_s=table.settings.ttl_s,
        partition_by=table.partition_by,
    )


def _parts(assignment: Assignment) -> int:
    """Return the largest number of outputs: cut at keys, or at rows without a key."""
    job = assignment.job
    return len(job.cuts) + 1 if assignment.table.key else max(1, job.outputs_expected)


def _cuts_at_s(assignment: Assignment) -> tuple[float, ...]:
    """Return the times at which outputs are cut.

    Raises:
        RewriteError: The table has a key, or no times.
    """
    job, table = assignment.job, assignment.table
    if job.cuts_at_s and (table.key or table.time_column is None):
        lacks = "has a key" if table.key else "has no time column"
        raise RewriteError(f"job {job.id} cuts outputs at times, but table {table.name} {lacks}")
    return job.cuts_at_s


def _output_paths(assignment: Assignment, parts: int) -> tuple[str, ...]:
    reservation = assignment.reservation
    if parts > reservation.outputs_max:
        message = (
            f"job {assignment.job.id} cuts {parts} outputs, "
            f"but {reservation.outputs_max} are reserved"
        )
        raise RewriteError(message)
    return tuple(reservation.output_path(number) for number in range(parts))


def _footer(assignment: Assignment) -> tuple[tuple[str, str], ...]:
    """Return the metadata of an output that a rebuild from storage needs."""
    reservation = assignment.reservation
    return (
        ("neve.format", FOOTER_FORMAT),
        ("neve.table", assignment.table.id),
        ("neve.tablet", assignment.job.tablet.text),
        ("neve.job", assignment.job.id),
        ("neve.attempt", reservation.attempt),
        ("neve.inputs", json.dumps(list(assignment.job.inputs))),
        ("neve.request", reservation.request or ""),
    )
