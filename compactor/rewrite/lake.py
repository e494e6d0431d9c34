"""The rewrite of a lake table's files. Rows that the table's log deletes are left out.

    read      one version of the table: columns, the job's files, positions of deleted rows
    divide    row groups among outputs, at the ends of files where possible
    rewrite   small row groups, those with deleted rows and those with other columns, in tasks
    stitch    rewritten and copied row groups to outputs; large ones are copied as bytes

A file without a live row is in no output. Rows keep the order of the inputs, so counts tell where
each row lies in an output: a row that is deleted while the job runs is found there. If the table
has a sort order, outputs have it instead; see `compactor.rewrite.lake_sort`. Columns are
found by their identifiers if the table has them, else by name; the files of a table without them
hold no partition columns, because its log has the values. Nothing is committed here; that does
`compactor.lake_commit`, in the compactor's own process.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from common.control_settings import CatalogSettings
from common.errors import (
    ConflictError,
    InputError,
    NotStitchableError,
    RequestError,
    RewriteError,
    VerificationError,
)
from common.lake.open import open_source, storage_options
from common.lake.source import (
    KeptRows,
    LakeFile,
    LakeOutput,
    Planned,
    Positions,
    Snapshot,
    SortKey,
    TableSource,
)
from common.model.outcome import RowCounts
from common.parquet.file_inspection import open_table_file
from common.parquet.location import open_location
from common.primitives import BoundedMap
from common.rows.conform import (
    conform,
    field_id,
    is_stored_alike,
    null_array,
    project,
    stored_names,
    widen_as_logged,
)
from common.rows.merge import DIGEST_MODULUS, Tally, digest_of, sum_counts
from common.rows.row_facts import RowFacts
from common.rows.rules import DropRule, RowRules
from common.rows.schema import arrow_schema, columns_of, normal_field
from common.wire import Assignment
from compactor.lake_commit import LakeResult, packed_result, require_same_table
from compactor.rewrite.attempt_folder import (
    ProgressMark,
    allowance_of,
    remove_parts,
    store_columns,
    store_positions,
    stored_columns,
    stored_positions,
)
from compactor.rewrite.file_io import (
    INT96_UNIT,
    Pay,
    delete_file,
    folder_and_name,
    leaf_columns,
    opened_input,
    stored_bytes,
    table_location,
    unmarked_instants,
    with_zone,
)
from compactor.rewrite.general_merge import BagPart, write_part
from compactor.rewrite.lake_sort import SORTED_SHARE, merge_output, sorted_rows
from compactor.rewrite.memory_budget import memory_budget
from compactor.rewrite.outputs import TaskResult, WrittenFile
from compactor.rewrite.parquet_bytes.relocation import StitchedFooter, StitchPiece
from compactor.rewrite.parquet_bytes.stitch import stitch
from compactor.rewrite.plan.inputs import (
    LARGER_FACTOR_MAX,
    FooterQuery,
    InputFooter,
    estimate_decoded_bytes,
    output_settings,
    read_footers,
    settings_like_inputs,
    too_fragmented,
)
from compactor.rewrite.plan.rewrite_plan import Inputs, Output, RewritePlan, Rules

# ----------------------------------------------------------------------------------- What is read


@dataclass(frozen=True, slots=True)
class LakeInputs:
    """What an attempt reads: one version of the table, and its own files in it."""

    source: TableSource
    snapshot: Snapshot
    files: tuple[LakeFile, ...]
    """The inputs, in the order of the assignment."""
    positions: tuple[Positions, ...]
    """Deleted positions of each of them."""
    matched: tuple[Positions, ...]
    """Positions of rows that equality deletes remove."""

    @property
    def left_out(self) -> tuple[Positions, ...]:
        """Positions of all rows that no output has."""
        pairs = zip(self.positions, self.matched, strict=True)
        return tuple(np.union1d(one, other) if len(other) else one for one, other in pairs)

    @property
    def planned(self) -> Planned:
        """What the commit compares with the head."""
        return Planned(
            version=self.snapshot.version,
            table_id=self.snapshot.table_id,
            deletes={file.path: file.deletes for file in self.files},
            positions=self._by_path(self.positions),
            sequences={file.path: file.sequence for file in self.files},
            equality={file.path: file.equality for file in self.files if file.equality},
            matched=self._by_path(self.matched),
        )

    def _by_path(self, positions: Sequence[Positions]) -> dict[str, Positions]:
        pairs = zip(self.files, positions, strict=True)
        return {file.path: own for file, own in pairs if len(own)}


def read_lake_inputs(
    assignment: Assignment, catalog: CatalogSettings, step: Callable[[], None]
) -> LakeInputs:
    """Read the newest version of a lake table, and the deletes of the inputs.

    Args:
        assignment: The reserved job.
        catalog: How logs are reached.
        step: Called after each input.

    Raises:
        ConflictError: An input has left the table, or the table was created anew.
        RewriteError: The table cannot be compacted.
        UnavailableError: The storage does not answer.
    """
    lake = assignment.table.lake
    assert lake is not None, assignment.table.name
    source = open_source(lake.format, lake.uri, storage_options(catalog, lake.uri))
    snapshot = source.load(_HEADS.get(lake.uri))
    _HEADS.put(lake.uri, snapshot)
    require_same_table(lake, snapshot)
    files, positions, matched = [], [], []
    for assigned in assignment.inputs:
        file = snapshot.files.get(assigned.path)
        if file is None:
            raise ConflictError(
                f"file {assigned.path} has left the table before version {snapshot.version}"
            )
        files.append(file)
        positions.append(source.positions(file) if file.deletes else _NO_POSITIONS)
        matched.append(source.matched(file) if file.equality else _NO_POSITIONS)
        step()
    if len({file.partition for file in files}) > 1:
        raise RewriteError(
            f"the files of attempt {assignment.reservation.attempt} are in more than one partition"
        )
    return LakeInputs(source, snapshot, tuple(files), tuple(positions), tuple(matched))


TABLES_MAX = 4
_HEADS: BoundedMap[str, Snapshot] = BoundedMap(TABLES_MAX)
"""Newest version of the last tables that this process has read, so that only news is read."""
_NO_POSITIONS: Positions = np.zeros(0, np.uint64)


# ------------------------------------------------------------------------ Row groups of each output


@dataclass(frozen=True, slots=True, order=True)
class GroupSpan:
    """Consecutive row groups of one input: its number, the first one, and the end."""

    at: int
    first: int
    end: int


def divide(live: Sequence[Sequence[int]], parts: int) -> tuple[tuple[GroupSpan, ...], ...]:
    """Divide row groups among outputs with about equally many live rows.

    An output ends where an input ends, so that a conflict about one input drops few outputs. Only
    an input with more live rows than an output should have is divided.

    Args:
        live: Number of live rows, for each input and each of its row groups.
        parts: Largest number of outputs.

    Returns:
        The spans of each output, in order; together they have every row group.
    """
    total = sum(map(sum, live))
    wanted = max(1, -(-total // max(1, parts)))
    edges: dict[int, tuple[int, int]] = {}
    begun = 0
    for at, rows in enumerate(live):
        divisible = sum(rows) > wanted
        for group, count in enumerate(rows):
            if group == 0 or divisible:
                edges.setdefault(begun, (at, group))
            begun += count
    inner = [rows for rows in edges if 0 < rows < total]
    cuts = [wanted * number for number in range(1, parts)] if inner else []
    chosen = {min((abs(rows - cut), rows) for rows in inner)[1] for cut in cuts}
    ends = [(0, 0), *(edges[rows] for rows in sorted(chosen)), (len(live), 0)]
    return tuple(_spans(live, begin, end) for begin, end in pairwise(ends))


def _spans(
    live: Sequence[Sequence[int]], begin: tuple[int, int], end: tuple[int, int]
) -> tuple[GroupSpan, ...]:
    """Return the spans from one row group to before another, each as input and number."""
    spans = []
    for at in range(begin[0], min(end[0] + 1, len(live))):
        first = begin[1] if at == begin[0] else 0
        stop = end[1] if at == end[0] else len(live[at])
        if stop > first or (at < end[0] and not live[at]):
            spans.append(GroupSpan(at, first, stop))
    return tuple(spans)


@dataclass(frozen=True, slots=True)
class LakePlan:
    """The rewrite of a job, with the row groups of each output."""

    inputs: LakeInputs
    rewrite: RewritePlan
    groups: tuple[tuple[int, ...], ...]
    """Rows of the row groups of each input."""
    live: tuple[tuple[int, ...], ...]
    """Rows of them that are not deleted."""
    copied: tuple[tuple[bool, ...], ...]
    """Which of them may be copied as bytes."""
    outputs: tuple[tuple[GroupSpan, ...], ...]

    @property
    def copies_all(self) -> bool:
        """Whether every row group is copied as bytes."""
        return all(flag for flags in self.copied for flag in flags)


def make_lake_plan(
    assignment: Assignment,
    inputs: LakeInputs,
    folder: str,
    task: tuple[int, int],
    on_read: Callable[[], None],
) -> LakePlan:
    """Return the plan of a job; the arguments are those of `make_plan`.

    Raises:
        InputError: An input is missing, unreadable or does not fit its entry in the log.
    """
    table, reservation = assignment.table, assignment.reservation
    paths, left_out = [file.path for file in inputs.files], inputs.left_out
    footers, decoded_bytes = _read_inputs(table.location, paths, on_read)
    for footer, file, positions in zip(footers, inputs.files, left_out, strict=True):
        _require_as_logged(footer, file, positions)
    schema = _file_schema(inputs.snapshot)
    wanted = output_settings(assignment)
    settings, codec = settings_like_inputs(assignment, wanted, footers, inputs.snapshot.properties)
    memory = memory_budget(task[0], assignment.halvings, settings.row_group_bytes, task[1])
    settings = replace(
        settings,
        row_group_bytes=memory.group_bytes,
        decimals_as_integers=inputs.snapshot.file_schema is not None,
        plain_texts=True,
    )
    groups = tuple(tuple(size.rows for size in footer.sizes) for footer in footers)
    live = tuple(map(_live_rows, groups, left_out))
    parts = min(max(1, assignment.job.outputs_expected), reservation.outputs_max)
    outputs = tuple(spans for spans in divide(live, parts) if _live_in(live, spans))
    plan = RewritePlan(
        location=table.location,
        folder=folder,
        inputs=Inputs(
            paths=tuple(paths),
            rows=sum(footer.num_rows for footer in footers),
            decoded_bytes=decoded_bytes,
            footer_bytes=sum(footer.size_bytes for footer in footers),
        ),
        rules=Rules(
            schema=schema,
            row_rules=RowRules(schema=columns_of(schema)),
            now_s=reservation.now_s,
            drop=DropRule(None),
            start=None,
            end=None,
        ),
        output=Output(
            paths=tuple(map(reservation.output_path, range(len(outputs)))),
            cuts=(),
            settings=settings,
            footer=(("neve.attempt", reservation.attempt), ("neve.job", assignment.job.id)),
        ),
        memory=memory,
    )
    copied = tuple(
        (False,) * len(rows)
        if inputs.snapshot.sort
        else _copied_groups(footer, rows, kept, plan, codec)
        for footer, rows, kept in zip(footers, groups, live, strict=True)
    )
    store_positions(folder, left_out)
    _store_columns(folder, inputs, footers)
    return LakePlan(inputs, plan, groups, live, copied, outputs)


def _read_inputs(
    uri: str, paths: Sequence[str], on_read: Callable[[], None]
) -> tuple[list[InputFooter], int]:
    """Return the footers of inputs, in order, and the decoded size of all rows."""
    folders: dict[str, list[str]] = {}
    for path in paths:
        folders.setdefault(folder_and_name(uri, path)[0], []).append(path)
    footers, decoded_bytes = dict[str, InputFooter](), 0
    for folder, whole in folders.items():
        location, names = table_location(folder), [folder_and_name(uri, path)[1] for path in whole]
        read = read_footers(location, names, FooterQuery(), on_read)
        decoded_bytes += estimate_decoded_bytes(location, dict(zip(names, read, strict=True)))
        footers |= zip(whole, read, strict=True)
    return [footers[path] for path in paths], decoded_bytes


def _require_as_logged(footer: InputFooter, file: LakeFile, positions: Positions) -> None:
    """Refuse a file with other rows than its entry in the log says."""
    if file.rows not in (-1, footer.num_rows):
        raise InputError(
            f"file {file.path} has {footer.num_rows} rows, but its table says {file.rows}: it was "
            "damaged or replaced; files must not change"
        )
    if len(positions) and int(positions[-1]) >= footer.num_rows:
        raise InputError(
            f"file {file.path} has {footer.num_rows} rows, but row {int(positions[-1])} of it was "
            "deleted; files must not change"
        )


def _file_schema(snapshot: Snapshot) -> pa.Schema:
    """Return the columns of data files: all but those that the partition gives."""
    if snapshot.file_schema is not None:
        return snapshot.file_schema
    columns = [
        column for column in snapshot.columns if column.name not in snapshot.partition_columns
    ]
    try:
        return arrow_schema(columns)
    except RequestError as error:
        raise RewriteError(str(error)) from error


def _live_in(live: Sequence[Sequence[int]], spans: Sequence[GroupSpan]) -> int:
    return sum(sum(live[span.at][span.first : span.end]) for span in spans)


def _live_rows(groups: Sequence[int], positions: Positions) -> tuple[int, ...]:
    """Return how many rows of each row group are not deleted."""
    ends = list(accumulate(groups, initial=0))
    deleted = np.diff(np.searchsorted(positions, np.array(ends, np.uint64)))
    return tuple(rows - int(gone) for rows, gone in zip(groups, deleted, strict=True))


def _copied_groups(
    footer: InputFooter,
    rows: Sequence[int],
    live: Sequence[int],
    plan: RewritePlan,
    codec: str | None,
) -> tuple[bool, ...]:
    """Return which row groups of a file may be copied: large, without deletes, right columns."""
    schema, settings = plan.rules.schema, plan.output.settings
    is_alike = footer.schema.equals(schema) or pa.schema(
        list(map(normal_field, footer.schema))
    ).equals(pa.schema(list(map(normal_field, schema))))
    if any(field_id(field) is not None for field in schema):
        names = {name: name for name in schema.names}
        is_alike = is_alike and stored_names(footer.schema, schema) == names
        is_alike = is_alike and is_stored_alike(footer.schema, schema)
    if not is_alike or (codec is not None and footer.codecs != {codec}):
        return (False,) * len(rows)
    largest = LARGER_FACTOR_MAX * settings.row_group_bytes
    return tuple(
        count == kept and size.decoded_bytes <= largest and not too_fragmented(1, size, settings)
        for count, kept, size in zip(rows, live, footer.sizes, strict=True)
    )


def _store_columns(folder: str, inputs: LakeInputs, footers: Sequence[InputFooter]) -> None:
    """Store the columns of inputs for tasks, if identifiers tell which columns they are."""
    if inputs.snapshot.file_schema is None:
        return
    for at, (file, footer) in enumerate(zip(inputs.files, footers, strict=True)):
        stored = inputs.source.stored_columns(inputs.snapshot, file, footer.schema)
        store_columns(folder, at, stored)


# ------------------------------------------------------------------------------------------ Rewrite


REWRITE_TASK_BYTES = 32 * 1024**2
"""Decoded bytes for which a task of its own is worthwhile."""
WHOLE_BYTES = 4 * 1024**2
"""Size up to which a file is read at once."""


@dataclass(frozen=True, slots=True)
class _Step:
    """Row groups that follow each other in an output."""

    spans: tuple[GroupSpan, ...]
    name: str = ""
    """Name of the part in the attempt's folder; empty: row groups are copied."""
    size_bytes: int = 0
    """Approximate decoded size of a part, with the deleted rows."""


RunTasks = Callable[[RewritePlan, Sequence[Callable[[], object]]], list[Any]]
"""Runs calls in tasks of their own; returns their results in order."""


def rewrite_lake(plan: LakePlan, run: RunTasks, cores: int, *, small: bool) -> TaskResult:
    """Write all outputs.

    Args:
        plan: The plan of the job.
        run: Runs tasks.
        cores: Number of concurrent tasks.
        small: Whether outputs are put together here, because starting tasks would take longer.

    Raises:
        RewriteError: It failed; outputs may be left, which the caller deletes.
    """
    try:
        return _rewritten(plan, run, cores, small=small)
    except NotStitchableError:
        # Some row group cannot be copied, which only its bytes show.
        location = table_location(plan.rewrite.location)
        for path in plan.rewrite.output.paths:
            delete_file(location, path)
        remove_parts(plan.rewrite.folder)
        none = tuple(tuple(False for _ in flags) for flags in plan.copied)
        return _rewritten(replace(plan, copied=none), run, cores, small=small)


def _rewritten(plan: LakePlan, run: RunTasks, cores: int, *, small: bool) -> TaskResult:
    steps = [_steps(plan, number, cores) for number in range(len(plan.outputs))]
    rewritten = [step for output in steps for step in output if step.name]
    order = plan.inputs.snapshot.sort
    calls: list[Callable[[], object]] = [
        partial(rewrite_row_groups, plan.rewrite, step, order, threads=len(rewritten) < cores)
        for step in rewritten
    ]
    for step, part in zip(rewritten, run(plan.rewrite, calls) if calls else (), strict=True):
        _require_all_rows(plan, step, part)
    stitches: list[Callable[[], object]] = [
        partial(merge_output, plan.rewrite, [step.name for step in output], path, order)
        if order
        else partial(stitch_output, plan.rewrite, output, path)
        for output, path in zip(steps, plan.rewrite.output.paths, strict=True)
    ]
    rows: list[Any] = [call() for call in stitches] if small else run(plan.rewrite, stitches)
    digest = sum(own for _, own in rows) % DIGEST_MODULUS if order else None
    rows = [count for count, _ in rows] if order else rows
    files = []
    for number, (spans, path) in enumerate(
        zip(plan.outputs, plan.rewrite.output.paths, strict=True)
    ):
        if rows[number] != (kept := _live_in(plan.live, spans)):
            raise VerificationError(f"output {path} has {rows[number]} rows, expected {kept}")
        files.append(WrittenFile(number, path, kept))
    read, kept = plan.rewrite.inputs.rows, sum(file.rows for file in files)
    counts = RowCounts(rows_in=read, rows_out=kept, tombstones_dropped=read - kept)
    # Copied bytes were compared with their sources; merged rows are read again.
    facts = None if order else tuple(RowFacts(rows=file.rows) for file in files)
    return TaskResult(counts=counts, dropped=None, files=tuple(files), facts=facts, digest=digest)


def _require_all_rows(plan: LakePlan, step: _Step, part: object) -> None:
    """Refuse a part with other rows than those that are not deleted."""
    assert isinstance(part, BagPart), type(part)
    read = sum(plan.groups[at][group] for at, group in _groups(step.spans))
    kept = sum(plan.live[at][group] for at, group in _groups(step.spans))
    if (part.counts.rows_in, part.facts.rows) != (read, kept):
        raise VerificationError(
            f"{part.counts.rows_in} rows were read and {part.facts.rows} written to {step.name}, "
            f"expected {read} and {kept}"
        )


def _groups(spans: Iterable[GroupSpan]) -> Iterator[tuple[int, int]]:
    """Yield all row groups of some spans, as input and number."""
    for span in spans:
        yield from ((span.at, group) for group in range(span.first, span.end))


def _steps(plan: LakePlan, number: int, cores: int) -> tuple[_Step, ...]:
    """Return how an output is put together, without row groups that have no live rows."""
    filled = [(at, group) for at, group in _groups(plan.outputs[number]) if plan.live[at][group]]
    steps: list[_Step] = []
    for is_copy, run in groupby(filled, key=lambda one: plan.copied[one[0]][one[1]]):
        groups = list(run)
        if is_copy:
            steps.append(_Step(_joined(groups)))
            continue
        for share in _shares(plan, groups, cores):
            rows = sum(plan.groups[at][group] for at, group in share)
            name = f"part-{number}-{len(steps)}.parquet"
            steps.append(_Step(_joined(share), name, int(plan.rewrite.inputs.row_bytes * rows)))
    return tuple(steps)


def _joined(groups: Iterable[tuple[int, int]]) -> tuple[GroupSpan, ...]:
    """Return row groups as few spans."""
    spans: list[GroupSpan] = []
    for at, group in groups:
        if spans and (spans[-1].at, spans[-1].end) == (at, group):
            spans[-1] = GroupSpan(at, spans[-1].first, group + 1)
        else:
            spans.append(GroupSpan(at, group, group + 1))
    return tuple(spans)


def _shares(
    plan: LakePlan, groups: Sequence[tuple[int, int]], cores: int
) -> Iterator[Sequence[tuple[int, int]]]:
    """Yield row groups in shares of about equally many rows, one for each task."""
    rows = [plan.groups[at][group] for at, group in groups]
    size_bytes = int(plan.rewrite.inputs.row_bytes * sum(rows))
    count = min(len(groups), cores, 1 + size_bytes // REWRITE_TASK_BYTES)
    if plan.inputs.snapshot.sort:  # A run is sorted in memory.
        runs = 1 + SORTED_SHARE * size_bytes // plan.rewrite.memory.in_memory_bytes
        count = min(len(groups), max(count, runs))
    ends = np.searchsorted(np.cumsum(rows), [sum(rows) * n / count for n in range(1, count)])
    for begin, end in pairwise([0, *(int(end) + 1 for end in ends), len(groups)]):
        if end > begin:
            yield groups[begin:end]


# -------------------------------------------------------------------------------------------- Tasks


def rewrite_row_groups(
    plan: RewritePlan, step: _Step, order: Sequence[SortKey] = (), *, threads: bool = True
) -> BagPart:
    """Write the rows of some row groups that are not deleted to a part in the attempt's folder.

    Args:
        plan: The plan.
        step: The row groups, and the name of the part.
        order: Order of rows in the table; empty: none.
        threads: Whether columns are read and written concurrently, because a core has no task.

    Raises:
        InputError: A file cannot be read, or a value of it does not fit.
        RewriteError: The part cannot be written.
        VerificationError: It has other rows than were written.
    """
    name, tally, mark = step.name, Tally(), ProgressMark(plan.folder, step.name)
    pay = allowance_of(plan.folder).pay
    # Rows that are few enough are held; others are read twice, which is cheap from a disk only.
    is_small = step.size_bytes <= plan.memory.in_memory_bytes
    compares = not order and (is_small or table_location(plan.location).is_local)
    held, held_bytes = list[pa.Table](), 0

    def kept_rows() -> Iterator[pa.Table]:
        nonlocal held_bytes
        for table, read, kept in _kept_rows(plan, step.spans, pay, threads=threads):
            gone = table.num_rows - kept.num_rows
            counts = RowCounts(
                rows_in=table.num_rows, rows_out=kept.num_rows, tombstones_dropped=gone
            )
            tally.counts = sum_counts(tally.counts, counts)
            if not compares:
                tally.digest = (tally.digest + digest_of(read)) % DIGEST_MODULUS
            elif not read.schema.equals(kept.schema) and digest_of(read) != digest_of(kept):
                raise VerificationError(f"the conversion of rows for {name} has changed values")
            held_bytes += kept.nbytes
            held.append(kept)
            if held_bytes > plan.memory.in_memory_bytes or not compares:
                held.clear()
            mark.add(table.nbytes, table.num_rows)
            yield kept

    def again() -> Iterator[pa.Table]:
        if held_bytes <= plan.memory.in_memory_bytes:
            yield from held
        else:
            yield from (kept for _, _, kept in _kept_rows(plan, step.spans, lambda _: None))

    rows = sorted_rows(kept_rows(), plan.rules.schema, order)
    return write_part(plan, rows, tally, name, again() if compares else None, threads=threads)


def _kept_rows(
    plan: RewritePlan, spans: Iterable[GroupSpan], pay: Pay, *, threads: bool = False
) -> Iterator[tuple[pa.Table, pa.Table, pa.Table]]:
    """Yield rows as in a file, without the deleted ones, and these in the plan's schema."""
    deleted_of = stored_positions(plan.folder)
    for span in spans:
        path, deleted = plan.inputs.paths[span.at], deleted_of(span.at)
        stored = stored_columns(plan.folder, span.at)
        schema, source = plan.rules.schema, f"file {path}"
        for start, table in _read_span(plan, path, span, stored, pay, threads=threads):
            read = _without_deleted(table, start, deleted)
            try:
                if stored is None:
                    read = widen_as_logged(read, schema, source)
                    yield table, read, conform(read, schema, source)
                    continue
                kept = project(read, stored, schema, source)
                # Hashes have the names of nested fields: only top-level ones may differ.
                yield table, read if is_stored_alike(stored, schema) else kept, kept
            except RequestError as error:
                raise InputError(str(error)) from error


def _without_deleted(table: pa.Table, start: int, deleted: Positions) -> pa.Table:
    """Return the rows that are not deleted.

    Args:
        table: Consecutive rows of a file.
        start: Position of the first one.
        deleted: Deleted positions of the file.
    """
    ends = np.array([start, start + table.num_rows], np.uint64)
    first, end = np.searchsorted(deleted, ends).tolist()
    if first == end:
        return table
    flags = np.ones(table.num_rows, np.bool_)
    flags[(deleted[first:end] - np.uint64(start)).astype(np.int64)] = False
    return table.filter(pa.array(flags))


def _read_span(
    plan: RewritePlan,
    path: str,
    span: GroupSpan,
    stored: pa.Schema | None,
    pay: Pay,
    *,
    threads: bool,
) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of row groups in batches, each with the position of its first row.

    Columns have the table's names. Those that the table does not have are left out: other readers
    ignore them as well.
    """
    folder, name = folder_and_name(plan.location, path)
    try:
        opened = partial(open_table_file, int96_unit=INT96_UNIT, whole_bytes=WHOLE_BYTES)
        with opened(table_location(folder), name) as parquet:
            metadata, present = parquet.metadata, parquet.schema_arrow.names
            if stored is None:
                named = {name: name for name in plan.rules.schema.names if name in present}
            else:
                named = stored_names(stored, plan.rules.schema)
            names = list(named)
            read = names or present[:1]
            leaves = leaf_columns(metadata, read)
            instants = unmarked_instants(metadata, named, plan.rules.schema)
            start = sum(metadata.row_group(group).num_rows for group in range(span.first))
            for group in range(span.first, span.end):
                pay(stored_bytes(metadata, group, leaves))
                for batch in parquet.iter_batches(
                    plan.read_rows_max, row_groups=[group], columns=read, use_threads=threads
                ):
                    table = pa.Table.from_batches([batch])
                    if names:
                        renamed = table.select(names).rename_columns(list(named.values()))
                        yield start, with_zone(renamed, instants)
                    else:
                        yield start, _nothing(plan.rules.schema, table, stored)
                    start += table.num_rows
    except RequestError as error:
        raise InputError(str(error)) from error


def _nothing(schema: pa.Schema, table: pa.Table, stored: pa.Schema | None) -> pa.Table:
    """Return the rows of a file that has no column of the table."""
    if stored is not None:
        return table  # The projection takes no column of it.
    columns = [null_array(table.num_rows, field.type) for field in schema]
    return pa.table(
        columns, schema=pa.schema([field.with_nullable(nullable=True) for field in schema])
    )


def stitch_output(plan: RewritePlan, steps: Sequence[_Step], path: str) -> int:
    """Put an output together; return its number of rows.

    Raises:
        NotStitchableError: A row group cannot be copied unchanged; no output is left.
        RewriteError: See `stitch`; no output is left.
    """
    location, parts = table_location(plan.location), open_location(Path(plan.folder).as_uri())
    pieces = []
    for step in steps:
        if step.name:
            pieces.append(StitchPiece(step.name, location=parts))
            continue
        pieces += [_copied_piece(plan, span) for span in step.spans]
    metadata = dict(plan.output.footer)
    mark = ProgressMark(plan.folder, f"stitch-{path.rpartition('/')[2]}")
    allowance = allowance_of(plan.folder)
    copies = any(not step.name for step in steps)
    total_bytes = max(1, plan.inputs.decoded_bytes)

    def copied(size_bytes: int) -> None:
        allowance.pay(size_bytes if copies else 0, written_bytes=size_bytes)
        if copies:
            mark.add(size_bytes, plan.inputs.rows * size_bytes // total_bytes)

    footing = StitchedFooter(metadata=metadata, schema=plan.rules.schema)
    made = stitch(location, pieces, path, footing=footing, on_copied=copied)
    allowance.synced(made.synced_bytes, made.sync_s)
    with open_table_file(location, path) as parquet:
        schema = parquet.schema_arrow
    if not schema.equals(plan.rules.schema):
        delete_file(location, path)
        raise NotStitchableError(f"output {path} has columns {schema}, not {plan.rules.schema}")
    return made.rows


def _copied_piece(plan: RewritePlan, span: GroupSpan) -> StitchPiece:
    path, groups = plan.inputs.paths[span.at], tuple(range(span.first, span.end))
    folder, name = folder_and_name(plan.location, path)
    return StitchPiece(name, groups, None if folder == plan.location else table_location(folder))


# ------------------------------------------------------------------------------------------- Result


def lake_result(
    plan: LakePlan, result: TaskResult, verified: Sequence[tuple[int, RowFacts]]
) -> bytes:
    """Return what the commit of an attempt needs: a `LakeResult`, packed.

    Args:
        plan: The plan of the job.
        result: The result of `rewrite_lake`.
        verified: Size and facts of each output, from `verify`.

    Raises:
        RewriteError: An output cannot be read.
    """
    location, inputs = table_location(plan.rewrite.location), plan.inputs
    outputs = []
    written = zip(plan.outputs, result.files, verified, strict=True)
    for spans, file, (size_bytes, _) in written:
        with opened_input(location, file.path) as parquet:
            stats = inputs.source.statistics(inputs.snapshot, parquet.metadata)
        live = [span for span in spans if _live_in(plan.live, [span])]
        paths = dict.fromkeys(plan.rewrite.inputs.paths[span.at] for span in live)
        outputs.append(
            LakeOutput(
                path=file.path,
                size_bytes=size_bytes,
                rows=file.rows,
                partition=inputs.files[0].partition,
                inputs=tuple(paths),
                stats=stats,
                offsets=() if inputs.snapshot.sort else _offsets(plan, spans),
            )
        )
    return packed_result(LakeResult(inputs.planned, tuple(outputs)))


def _offsets(plan: LakePlan, spans: Sequence[GroupSpan]) -> tuple[KeptRows, ...]:
    """Return where the rows of an output's inputs lie in it."""
    runs, start = [], 0
    for span in spans:
        rows, live = plan.groups[span.at], plan.live[span.at]
        first, end = sum(rows[: span.first]), sum(rows[: span.end])
        if end > first:
            runs.append(KeptRows(plan.rewrite.inputs.paths[span.at], first, end, start))
        start += sum(live[span.first : span.end])
    return tuple(runs)
