"""A look at row groups before they are copied; a task."""

from dataclasses import replace

from common.model.outcome import RowCounts
from common.parquet.location import open_location
from common.rows.row_facts import RowFacts
from compactor.rewrite.apart import Copy
from compactor.rewrite.kernel.parts import join_facts, key_ends, key_layout
from compactor.rewrite.kernel.words import LongKeyError
from compactor.rewrite.marks import Mark
from compactor.rewrite.native import Merged, PartResult, WrongStatistics, paying_reader
from compactor.rewrite.plan import RewritePlan


def check_copy(plan: RewritePlan, copy: Copy) -> Merged:
    """Make sure that row groups lie where their footers say that they do.

    Their files' keys ascend, which is known of them; so wherever row groups follow each other
    in a file, the first key and the last one say all.

    Args:
        plan: Of the job, with the facts of these files.
        copy: The row groups, by key.

    Returns:
        Facts and counts of their rows, or which input is not as it was said to be.
    """
    location, layout = open_location(plan.location), key_layout(plan.rules, plan.schema)
    mark, facts = Mark(plan.progress_folder, f"copy-{copy.groups[0].input}"), list[RowFacts]()
    for groups in copy.stretches():
        first, last = groups[0], groups[-1]
        reader = paying_reader(plan, location, plan.inputs[first.input], layout, copied=True)
        try:
            low, high = key_ends(reader, first, last)
        except LongKeyError:
            return WrongStatistics(first.input)
        if low < (first.low or b"") or high > (last.high or b""):
            return WrongStatistics(first.input)
        for group in groups:
            reader.pay(group)
            mark.add(group.size_bytes, group.rows)
        # What is known of the whole file bounds what is copied of it.
        rows, known = sum(group.rows for group in groups), plan.clean[first.input]
        facts.append(replace(known, rows=rows, key_min=low, key_max=high))
    joined = join_facts(facts, "copied row groups")
    counts = RowCounts(rows_in=joined.rows, rows_out=joined.rows)
    return PartResult(counts=counts, dropped=None, facts=joined)
