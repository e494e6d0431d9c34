"""What one rewrite has to do, worked out from the assignment and the inputs' footers.

A plan is a value: it goes to Spark's tasks as it is, and says everything that they need.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from common.errors import InputError, RequestError, RewriteError
from common.parquet.footer_checks import codec_name
from common.rows.row_facts import RowFacts
from common.rows.rules import DropRule, RowRules
from common.rows.schema import arrow_schema, columns_of, unite_schemas
from common.rows.types import normal_field
from common.wire import Assignment
from compactor.rewrite.file_io import table_location
from compactor.rewrite.kernel.normalized_keys import RowGroup
from compactor.rewrite.plan.inputs import (
    FooterQuery,
    InputFooter,
    clean_facts,
    estimate_decoded_bytes,
    read_footers,
    require_inputs_unchanged,
)
from compactor.rewrite.plan.memory_budget import (
    TASK_BYTES,
    MemoryBudget,
    memory_budget,
    rows_at_a_time,
)
from compactor.rewrite.plan.output_options import OutputSettings, output_settings, worth_copying
from compactor.rewrite.plan.transform_plan import TransformPlan, make_transform

FOOTER_FORMAT = "1"
DEFAULT_BUDGET = memory_budget(TASK_BYTES, 0, 128 * 1024**2)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewritePlan:
    """One rewrite. Paths are relative to `location`."""

    location: str
    inputs: tuple[str, ...]
    rows: int
    """Rows of all inputs, by their footers."""
    decoded_bytes: int
    """Bytes of all rows, by the footers and a look at some texts."""
    footer_bytes: int = 0
    """Of the footers of all inputs together."""
    schema: pa.Schema
    """Of the outputs: the table's and all inputs' united."""
    rules: RowRules
    now_s: float
    drop: DropRule
    outputs: tuple[str, ...]
    """One path per part; a part without rows has no file."""
    cuts: tuple[bytes, ...]
    """Part n ends with key `cuts[n]`, the last part never."""
    start: bytes | None
    end: bytes | None
    """Keys of the tablet are in `(start, end]`; both None: any key."""
    writing: OutputSettings
    footer: tuple[tuple[str, str], ...]
    """Key-value metadata of every output, but for what is known at its end."""
    purge: bytes | None = None
    progress_folder: str = ""
    """Where tasks on this machine leave word of how far they are."""
    transform: TransformPlan | None = None
    """What the job's request does to the rows before they are merged."""
    memory: MemoryBudget = DEFAULT_BUDGET
    """What one task may hold."""
    clean: Mapping[int, RowFacts] = field(default_factory=dict)
    """Facts of the inputs of which row groups may be copied, if they meet no others: their keys
    ascend, and no row is dead."""
    groups: tuple[RowGroup, ...] = ()
    """Row groups of all inputs of a keyed table, by their footers."""
    small: Mapping[int, int] = field(default_factory=dict)
    """Inputs of one small row group with exactly the columns of the outputs: bytes, by number."""
    alike: frozenset[int] = frozenset()
    """Inputs with columns, codec and Bloom filters of the outputs, however Arrow holds them."""
    worth_stitching: bool = False
    """Whether the row groups of all inputs together are large enough to be copied."""

    @property
    def read_rows_max(self) -> int:
        """Rows that are read at a time where all columns are held."""
        return rows_at_a_time(self.decoded_bytes / max(1, self.rows), self.memory)


def make_plan(
    assignment: Assignment,
    progress_folder: str = "",
    task: tuple[int, int] = (TASK_BYTES, 0),
    on_read: Callable[[], None] = lambda: None,
) -> RewritePlan:
    """Return the plan of an assignment, after a look at every input's footer.

    Args:
        assignment: The reserved job.
        progress_folder: See `RewritePlan`.
        task: Bytes that the process of a task may have, and with which it is ended; 0: never.
        on_read: Is called after each footer, perhaps in several threads.

    Raises:
        InputError: An input is missing, unreadable or does not fit the others.
        RewriteError: There are more parts than reserved outputs, or the request does not fit.
        PluginError: The table's configurer misbehaved.
    """
    table, reservation, bounds = assignment.table, assignment.reservation, assignment.bounds
    location = table_location(table.location)
    paths = [file.path for file in assignment.inputs]
    writing = output_settings(assignment)
    asked = FooterQuery(table.key, writing.bloom_columns)
    footers = dict(zip(paths, read_footers(location, paths, asked, on_read), strict=True))
    require_inputs_unchanged(location, assignment, footers)
    memory = memory_budget(task[0], assignment.halvings, writing.row_group_bytes, task[1])
    schema = _united_schema(assignment, {path: footer.schema for path, footer in footers.items()})
    rules = _rules(assignment, schema)
    return RewritePlan(
        location=table.location,
        inputs=tuple(footers),
        rows=sum(footer.num_rows for footer in footers.values()),
        decoded_bytes=estimate_decoded_bytes(location, footers),
        footer_bytes=sum(footer.size_bytes for footer in footers.values()),
        schema=schema,
        rules=rules,
        now_s=reservation.now_s,
        drop=DropRule(assignment.settled, assignment.outside),
        outputs=_outputs(assignment),
        cuts=assignment.job.cuts,
        start=None if bounds.partition is not None else bounds.start,
        end=None if bounds.partition is not None else bounds.end,
        writing=replace(writing, row_group_bytes=memory.group_bytes),
        memory=memory,
        footer=_footer(assignment),
        purge=assignment.purge,
        progress_folder=progress_folder,
        transform=make_transform(assignment, schema),
        clean=_clean_inputs(assignment, rules, schema),
        groups=tuple(group for footer in footers.values() for group in footer.groups),
        small=_small_inputs(footers.values(), schema),
        alike=_matching_inputs(footers.values(), schema, writing),
        worth_stitching=worth_copying(
            [size for footer in footers.values() for size in footer.sizes], writing
        ),
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
    """Return the facts of inputs whose rows are all unique and alive, by their metadata."""
    asked = assignment.request is not None and assignment.request.output.codec_level is not None
    if asked or rules.partition_by:
        return {}  # Of a level no footer tells; columns may be left to folders.
    return clean_facts(assignment.inputs, rules, schema, assignment.reservation.now_s)


def _matching_inputs(
    footers: Iterable[InputFooter], schema: pa.Schema, writing: OutputSettings
) -> frozenset[int]:
    wanted = {codec_name(writing.codec)}
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
    known = [("table schema", arrow_schema(assignment.table.schema))]
    for path, schema in schemas.items():
        # Of thousands of files, nearly all have the schema of the one before.
        if not known[-1][1].equals(schema):
            known.append((f"file {path}", schema))
    try:
        return unite_schemas(known)
    except RequestError as error:
        raise InputError(str(error)) from error


def _rules(assignment: Assignment, schema: pa.Schema) -> RowRules:
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


def _outputs(assignment: Assignment) -> tuple[str, ...]:
    parts, reservation = len(assignment.job.cuts) + 1, assignment.reservation
    if parts > reservation.outputs_max:
        message = (
            f"job {assignment.job.id} cuts {parts} outputs, "
            f"but {reservation.outputs_max} are reserved"
        )
        raise RewriteError(message)
    return tuple(reservation.output_path(number) for number in range(parts))


def _footer(assignment: Assignment) -> tuple[tuple[str, str], ...]:
    """Return what a rebuild from storage needs to know of an output."""
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
