"""Calls in processes of their own: what they have in memory, and how they end."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from tests.support.patience import PATIENCE_S


def run_apart(call: Callable[[], Any]) -> tuple[Any, int | None]:
    """Run in a new process; return the answer, None if it ended without, and its exit code."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_answered, args=(call, theirs))
    child.start()
    theirs.close()
    try:
        said = ours.recv()
    except EOFError:
        said = None
    child.join(PATIENCE_S)
    return said, child.exitcode


def _answered(call: Callable[[], Any], answer: Connection) -> None:
    answer.send(call())
