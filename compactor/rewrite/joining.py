"""The outputs of a native job, stitched from what tasks have merged and what is copied."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from common.errors import VerificationError
from common.model.outcome import RowCounts
from common.rows.row_facts import RowFacts
from common.rows.rules import join_dropped
from compactor.rewrite.allowance import allowance_of
from compactor.rewrite.apart import Copy
from compactor.rewrite.files import table_location
from compactor.rewrite.kernel.bounds import Group
from compactor.rewrite.kernel.parts import join_facts
from compactor.rewrite.merging import sum_counts
from compactor.rewrite.native import PartResult
from compactor.rewrite.plan import RewritePlan
from compactor.rewrite.stitch.pieces import Footing, Piece
from compactor.rewrite.stitch.stitching import stitch
from compactor.rewrite.tasks import TaskResult
from compactor.rewrite.worth import GroupSize, worth_copying
from compactor.rewrite.writer import WrittenFile, footer_of, purge_after, writing


@dataclass(frozen=True, slots=True)
class Seam:
    """Rows that follow each other: where they begin, in which output, and where they are."""

    start: bytes
    part: int
    pieces: tuple[Piece, ...]


def joined(
    plan: RewritePlan, results: Sequence[tuple[Seam, PartResult]], earlier: RowCounts
) -> TaskResult:
    """Stitch the outputs.

    Args:
        plan: Of the job.
        results: What tasks have merged or looked at, in any order.
        earlier: What became of rows before.

    Raises:
        NotStitchableError: Row groups of inputs cannot be copied; outputs may be left.
        VerificationError: What was stitched is not what tasks have seen.
        RewriteError: The outputs cannot be written.
    """
    counts, dropped = earlier, join_dropped(result.dropped for _, result in results)
    for _, result in results:
        counts = sum_counts(counts, result.counts)
    known = sorted(
        (each for each in results if each[1].counts.rows_out), key=lambda each: each[0].start
    )
    by_part = {part: list(found) for part, found in groupby(known, lambda each: each[0].part)}
    written = [plan.outputs[part] for part in by_part]
    files, facts, location = [], [], table_location(plan.location)
    allowance = allowance_of(plan.progress_folder)
    for part, found in by_part.items():
        path = plan.outputs[part]
        outputs = written if path == written[-1] else None
        metadata = footer_of(plan, purge_after(plan, dropped), outputs)
        pieces = [piece for seam, _ in found for piece in seam.pieces]
        footing = Footing(metadata=metadata, schema=plan.schema)
        # What is copied of inputs was paid for when it was looked at; parts are our own.
        made = stitch(location, pieces, path, footing=footing, on_copied=allowance.pay)
        allowance.synced(made.synced_bytes, made.sync_s)
        seen = join_facts([_facts(result) for _, result in found], f"output {path}")
        if made.rows != seen.rows:
            raise VerificationError(f"output {path} has {made.rows} rows, wanted {seen.rows}")
        files.append(WrittenFile(part, path, made.rows))
        facts.append(seen)
    if not files:
        with writing(plan) as writer:
            writer.finish(dropped)
    return TaskResult(counts=counts, dropped=dropped, files=tuple(files), facts=tuple(facts))


def _facts(result: PartResult) -> RowFacts:
    assert result.facts is not None
    return result.facts


def part_of(copy: Copy, cuts: Sequence[bytes]) -> int:
    """Return the number of the output that copied row groups belong to."""
    return sum(cut < (copy.groups[-1].high or b"") for cut in cuts)


def pieces_of(copy: Copy, paths: Sequence[str]) -> tuple[Piece, ...]:
    """Return row groups as they are stitched: neighbours of one file together."""
    return tuple(
        Piece(paths[at], tuple(group.number for group in groups))
        for at, groups in groupby(copy.groups, lambda group: group.input)
    )


def copyable_inputs(plan: RewritePlan, groups: Sequence[Group]) -> frozenset[int]:
    """Return the inputs whose row groups are of the schema, codec and size that are wanted."""
    sizes: dict[int, list[GroupSize]] = {}
    for group in groups:
        sizes.setdefault(group.input, []).append(GroupSize(group.rows, group.size_bytes))
    known = plan.clean.keys() & plan.alike & sizes.keys()
    return frozenset(at for at in known if worth_copying(sizes[at], plan.writing))
