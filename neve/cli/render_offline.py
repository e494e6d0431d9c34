"""Plans that were made without a service, as tables for people."""

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType

from neve.cli.render import RIGHT, grid, lines


def offline(planned: Mapping[str, Any]) -> RenderableType:
    """Return a plan that was made without a service."""
    columns = [("GROUP", ""), ("KIND", ""), ("PRIORITY", RIGHT), ("FILES", ""), ("REASON", "")]
    jobs_planned = [
        (each["group"], each["kind"], each["priority"], " ".join(each["files"]), each["reason"])
        for each in planned["jobs"]
    ]
    left = grid([("LEFT", ""), ("WHY", "")], sorted(planned["left"].items()))
    return (
        lines(grid(columns, jobs_planned), "", left)
        if planned["left"]
        else grid(columns, jobs_planned)
    )
