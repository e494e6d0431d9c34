"""A job: a decision to merge some files; it holds nothing until it is reserved."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from common.digests import digest

if TYPE_CHECKING:
    from common.model.tablet import TabletId


class Kind(StrEnum):
    """Who wants a job: the service for its own reasons, or a user's request."""

    SYSTEM = "SYSTEM"
    USER = "USER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One compaction of one tablet.

    `id` is derived from tablet, kind, request, inputs and range: the same decision
    taken twice has the same id, so a queue keeps its age and place.
    """

    id: str
    tablet: "TabletId"
    table_name: str
    kind: Kind
    inputs: tuple[str, ...]
    """Paths, sorted."""
    input_bytes: int
    group: str
    priority: int
    """Larger runs first."""
    reason: str
    """A sentence that a person understands."""
    request: str | None = None
    depends_on: tuple[str, ...] = ()
    """Ids of jobs of the same plan that must be committed first."""
    outputs_expected: int = 1
    cuts: tuple[bytes, ...] = ()
    """Keys after which a new output begins (0..n outputs); empty: one output."""
    output_tags: tuple[tuple[str, str], ...] = ()
    partition: str | None = None
    """The partition that the tablet is, `month=1/day=2`; None: it is a range of keys."""

    @property
    def cost_bytes(self) -> int:
        """Bytes in plus bytes out, the latter taken to be as many."""
        return 2 * self.input_bytes


def job_id(
    tablet: "TabletId",
    kind: Kind,
    request: str | None,
    inputs: tuple[str, ...],
    cuts: tuple[bytes, ...] = (),
) -> str:
    """Return the id of the job that would do exactly this."""
    parts: list[str | bytes] = [
        tablet.table,
        tablet.end,
        kind.value,
        request or "",
        *sorted(inputs),
    ]
    return "job-" + digest([*parts, "cuts", *cuts])
