"""A native merge in one task that writes the outputs: nothing is decoded twice or joined.

Small jobs are merged like this, and larger ones for which two cores are all that there
are, or whose row groups are so wide that several ranges would decode most of them again.
"""

from collections.abc import Sequence
from dataclasses import replace

from compactor.rewrite.files import table_location
from compactor.rewrite.kernel.bounds import Group, Range
from compactor.rewrite.kernel.parts import read_back
from compactor.rewrite.kernel.steps import StatisticsError
from compactor.rewrite.kernel.words import LongKeyError
from compactor.rewrite.merging import Tally
from compactor.rewrite.native import (
    LongKeys,
    Source,
    Sources,
    WrongStatistics,
    dues_of,
    merged_tables,
)
from compactor.rewrite.pipeline import Behind
from compactor.rewrite.plan import RewritePlan
from compactor.rewrite.questions import Answers
from compactor.rewrite.tasks import TaskResult, rewrite_in_memory
from compactor.rewrite.writer import writing


def rewrite_natively(plan: RewritePlan, answers: Answers | None = None) -> TaskResult:
    """Merge all inputs of a small job, which may be held at once, and write its outputs.

    Args:
        plan: What to do.
        answers: None; the kernel knows no transforms.
    """
    # So nothing that footers say of keys has to be believed.
    groups = [replace(group, low=None, high=None) for group in plan.groups]
    try:
        return _merged(plan, dict(enumerate(map(Source, plan.inputs))), groups)
    except LongKeyError:
        return rewrite_in_memory(plan, answers)


def merge_whole(
    plan: RewritePlan, sources: Sources, groups: Sequence[Group]
) -> TaskResult | WrongStatistics | LongKeys:
    """Merge a job and write its outputs, without a look at what does not overlap yet.

    Args:
        plan: Of the job.
        sources: All files whose row groups are merged, by number.
        groups: Row groups, all of them.

    Returns:
        What came of it, or why no output is left.

    Raises:
        RewriteError: It failed; no output is left.
    """
    try:
        return _merged(plan, sources, groups)
    except StatisticsError as error:
        return WrongStatistics(error.input)
    except LongKeyError:
        return LongKeys()


def _merged(plan: RewritePlan, sources: Sources, groups: Sequence[Group]) -> TaskResult:
    tally, work = Tally(), Range(groups=tuple(groups))
    with writing(plan) as writer, Behind() as behind:
        for table in merged_tables(plan, sources, work, dues_of(plan, tally, "write")):
            behind.call(writer.write, table, tally.dropped)
        behind.settle()
        files = writer.finish(tally.dropped)
    location = table_location(plan.location)
    facts = tuple(read_back(location, file.path, plan.rules, plan.schema) for file in files)
    return TaskResult(counts=tally.counts, dropped=tally.dropped, files=files, facts=facts)
