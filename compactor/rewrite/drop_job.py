"""The way `drop`: a whole job whose rows have all expired ends without reading a row.

Metadata gives the latest time of each input and the bounds of its keys and versions, and footers
show that no row lacks a time. If either leaves a doubt, the rows are read, and those that have not
expired are kept. So a job that was planned as a drop may cost time, but never loses a row.
"""

from collections.abc import Iterable

import pyarrow as pa

from common.model.file import DataFile
from common.model.outcome import DroppedRows, RowCounts
from common.rows.dead_rows import CLOCK_MARGIN_S
from common.rows.rules import DropRule, may_hold_older_between, merged_spans
from common.wire import Assignment
from compactor.rewrite.output_writer import open_output_writer
from compactor.rewrite.plan.rewrite_plan import RewritePlan
from compactor.rewrite.task_result import TaskResult


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
