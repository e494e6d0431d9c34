"""The view of compactors and scaling: wanted, starting, running and draining, with the reasons."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from neve import api
from neve.console.frame import Variables, View, page
from neve.console.pages.control import last_hour, recorded_lines, times_of
from neve.console.render import Series

DECISIONS_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCompactors:
    """A group with its compactors, and how many it is meant to have."""

    group: api.Group
    compactors: tuple[api.Compactor, ...]
    wanted: int | None
    """None: the service does not start compactors of this group."""
    starting: int
    running: int
    draining: int
    decisions: tuple[api.ScalingDecision, ...]
    """The last changes, newest first."""


def group_compactors(
    groups: Iterable[api.Group], compactors: Sequence[api.Compactor]
) -> list[GroupCompactors]:
    """Return the groups with their compactors.

    A compactor whose Spark application starts counts as starting, like one that has not reported.
    """
    lines = []
    for group in groups:
        own = tuple(entry for entry in compactors if entry.group == group.group)
        scaling = group.scaling
        warming = sum(not entry.ready and not entry.draining for entry in own)
        lines.append(
            GroupCompactors(
                group=group,
                compactors=own,
                wanted=None if scaling is None else scaling.desired,
                starting=warming + (0 if scaling is None else scaling.starting),
                running=sum(entry.ready and not entry.draining for entry in own),
                draining=sum(entry.draining for entry in own),
                decisions=()
                if scaling is None
                else tuple(reversed(scaling.decisions))[:DECISIONS_SHOWN],
            )
        )
    return lines


LINES: Mapping[str, str] = {
    "wanted": "compactors_desired",
    "running": "compactors",
    "starting": "compactors_starting",
    "draining": "compactors_draining",
}
"""Label of a line of the plot → its measure."""


def group_plots(series: api.Series | None) -> dict[str, list[Series]]:
    """Return group → the numbers of its compactors in the last hour; unrecorded lines are left out.

    A group of which nothing was recorded is left out.
    """
    groups = () if series is None else series.groups
    plots = {group.name: recorded_lines(group, LINES) for group in groups}
    return {name: lines for name, lines in plots.items() if lines}


def slot_words(compactor: api.Compactor) -> str:
    """Return the state of a compactor in a word or a short phrase."""
    if compactor.start_problem and not compactor.ready:
        return "does not start"
    if compactor.draining:
        return "draining"
    if not compactor.ready:
        return "starting"
    if compactor.backing_off_s:
        return "backing off"
    return "busy" if compactor.busy else "idle"


@page(
    "/console/compactors",
    "compactors.html",
    of="GET /v1/groups",
    title="Compactors and scaling",
    nav="Compactors",
)
async def compactors_page(view: View) -> Variables:
    """Read groups, compactors and limits."""
    groups = await view.maybe("GET /v1/groups")
    compactors = await view.maybe("GET /v1/compactors")
    limits = await view.maybe("GET /v1/limits")
    series = await last_hour(view, list(LINES.values()), groups=True)
    listed: Sequence[api.Group] = () if groups is None else groups["groups"]
    return {
        "answered": groups is not None,
        "groups": group_compactors(listed, () if compactors is None else compactors["compactors"]),
        "limits": () if limits is None else limits["limits"],
        "plots": group_plots(series),
        "times": [] if series is None else times_of(series),
        "slot_words": slot_words,
    }
