"""The way `stitch`: a whole job whose rows stay unchanged, copied as row groups.

It is used if no row can win over another, expire or change: for append-only tables, and for keyed
ones whose inputs are clean and do not overlap. The output's metadata is derived from the inputs',
which was exact when they were added or verified.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from common.errors import NotStitchableError
from common.model.file import DataFile
from common.model.outcome import DroppedRows, RowCounts
from common.parquet.file_inspection import open_table_file
from common.parquet.location import Location
from common.rows.row_facts import (
    RowFacts,
    facts_of_file,
    unite_facts,
)
from common.rows.rules import (
    CLOCK_MARGIN_S,
    DropRule,
    may_expire,
    may_hold_older_between,
    merged_spans,
)
from common.wire import Assignment
from compactor.rewrite.attempt_folder import ProgressMark
from compactor.rewrite.file_io import delete_file, table_location
from compactor.rewrite.outputs import TaskResult, WrittenFile, open_output_writer
from compactor.rewrite.parquet_bytes.relocation import StitchedFooter, StitchPiece
from compactor.rewrite.parquet_bytes.stitch import stitch
from compactor.rewrite.plan.rewrite_plan import RewritePlan
from compactor.rewrite.throttle import allowance_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StitchPlan:
    """The plan of a stitch."""

    paths: tuple[str, ...]
    """Paths of the inputs, in key order."""
    size_bytes: int
    """Total size of the inputs."""
    facts: RowFacts
    """Facts of the output."""


def stitch_plan(plan: RewritePlan, assignment: Assignment) -> StitchPlan | None:
    """Return the plan of a stitch; None: the rows have to be read.

    Args:
        plan: The plan of the job.
        assignment: The assignment of the job.
    """
    if len(plan.inputs.matching) < len(plan.inputs.paths) or not plan.inputs.worth_stitching:
        return None
    files = _files_in_key_order(plan, assignment)
    if files is None:
        return None
    facts = unite_facts(list(map(facts_of_file, files)))
    return StitchPlan(
        paths=tuple(file.path for file in files),
        size_bytes=sum(file.size_bytes for file in files),
        facts=facts,
    )


def stitch_whole(stitching: StitchPlan, plan: RewritePlan) -> TaskResult:
    """Stitch the inputs of a job.

    Raises:
        NotStitchableError: They cannot be copied unchanged; no output is left.
        RewriteError: See `stitch`; no output is left.
    """
    location, output = table_location(plan.location), plan.output.paths[0]
    mark, total_bytes = ProgressMark(plan.folder, "write"), max(1, plan.inputs.decoded_bytes)
    allowance = allowance_of(plan.folder)

    def copied(size_bytes: int) -> None:
        allowance.pay(size_bytes, written_bytes=size_bytes)
        mark.add(size_bytes, plan.inputs.rows * size_bytes // total_bytes)

    purge = plan.output.purge.hex() if plan.output.purge else ""
    last_file = {"neve.purge": purge, "neve.outputs": json.dumps([output])}
    footing = StitchedFooter(
        metadata={**dict(plan.output.footer), **last_file}, schema=plan.rules.schema
    )
    made = stitch(
        location,
        list(map(StitchPiece, stitching.paths)),
        output,
        footing=footing,
        on_copied=copied,
    )
    allowance.synced(made.synced_bytes, made.sync_s)
    try:
        _require_schema(location, output, plan.rules.schema)
    except BaseException:
        delete_file(location, output)
        raise
    counts = RowCounts(rows_in=made.rows, rows_out=made.rows)
    written = WrittenFile(0, output, made.rows)
    return TaskResult(counts=counts, dropped=None, files=(written,), facts=(stitching.facts,))


def _files_in_key_order(plan: RewritePlan, assignment: Assignment) -> tuple[DataFile, ...] | None:
    """Return the inputs in the order of their rows; None: rows may overlap, expire or change."""
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
    inside = (plan.rules.start is None or plan.rules.start < bounds[0][0]) and (
        plan.rules.end is None or bounds[-1][1] <= plan.rules.end
    )
    return tuple(ordered) if disjoint and inside else None


def _require_schema(location: Location, output: str, schema: pa.Schema) -> None:
    """Refuse an output whose columns readers would see incorrectly."""
    with open_table_file(location, output) as parquet:
        output_schema = parquet.schema_arrow
    if not output_schema.equals(schema):
        raise NotStitchableError(f"output {output} has columns {output_schema}, not {schema}")


# ----------------------------------------------------------------------------------------- Drop job
# The way `drop`: a whole job whose rows have all expired ends without reading a row.
#
# Metadata gives the latest time of each input and the bounds of its keys and versions, and footers
# show that no row lacks a time. If either leaves a doubt, the rows are read, and those that have
# not expired are kept. So a job that was planned as a drop may cost time, but never loses a row.


def drop_whole(plan: RewritePlan, assignment: Assignment) -> TaskResult | None:
    """End a job whose rows may all be dropped; None: its rows have to be read.

    The only output is the empty file that shows a rebuild that the inputs are gone.

    Args:
        plan: The plan of the job.
        assignment: The assignment of the job.

    Raises:
        RewriteError: That file cannot be written.
        UnavailableError: The storage does not answer.
    """
    files = assignment.inputs
    if plan.rules.transform is not None or not _all_expired(plan, files):
        return None
    dropped = None
    if plan.rules.row_rules.key:
        # An expired row hides older ones of its key, as a tombstone does.
        dropped = _droppable(files, plan.rules.drop)
        if dropped is None:
            return None
    with open_output_writer(plan) as writer:
        outputs = writer.finish(dropped)
    rows = plan.inputs.rows
    counts = RowCounts(rows_in=rows, expired_dropped=rows)
    return TaskResult(counts=counts, dropped=dropped, files=outputs, facts=())


def _all_expired(plan: RewritePlan, files: Iterable[DataFile]) -> bool:
    """Return whether every row has certainly expired."""
    rules, now_s = plan.rules.row_rules, plan.rules.now_s
    if rules.ttl_s is None or rules.time_column is None or not plan.inputs.timed:
        return False
    if pa.types.is_floating(plan.rules.schema.field(rules.time_column).type):
        return False  # A time such as NaN never expires, and is in no file's bounds.
    safe_s = now_s - rules.ttl_s - CLOCK_MARGIN_S
    return all(file.time_max_s is not None and file.time_max_s <= safe_s for file in files)


def _droppable(files: Iterable[DataFile], rule: DropRule) -> DroppedRows | None:
    """Return the keys and versions of droppable files; None: some row may have to stay."""
    spans, versions = [], []
    for file in files:
        low, high, version = file.key_min, file.key_max, file.version_max
        if low is None or high is None or version is None:
            return None
        if rule.settled is None or version > rule.settled:
            return None
        if any(may_hold_older_between(other, low, high, version) for other in rule.outside):
            return None
        spans.append((low, high))
        versions.append(version)
    return DroppedRows(spans=merged_spans(spans), version_max=max(versions)) if spans else None
