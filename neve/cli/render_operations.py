"""Splits and merges as tables for people."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import RenderableType

from neve.api_operations import Operation
from neve.cli.render import grid


def operations(found: Sequence[Operation]) -> RenderableType:
    """Return a listing of splits and merges."""
    return grid(
        [
            ("OPERATION", ""),
            ("KIND", ""),
            ("AT", ""),
            ("TABLETS", ""),
            ("SINCE (UTC)", ""),
            ("STEP", ""),
            ("WAITS FOR", ""),
            ("BEGAN BECAUSE", ""),
        ],
        [
            (
                each.id,
                each.kind,
                each.at,
                ", ".join(each.tablets),
                datetime.fromtimestamp(each.since_s, UTC).strftime("%Y-%m-%d %H:%M:%S"),
                each.step,
                each.waits,
                each.reason,
            )
            for each in found
        ],
    )
