"""Where is the service? Arguments, else the environment, else the stack of this machine.

Reads the state file of a local stack as plain JSON; nothing of the project but the
client is imported here.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neve.client import Client
from neve.client_errors import CallerError, UnavailableError

URL_VARIABLE = "NEVE_URL"
TOKEN_VARIABLE = "NEVE_TOKEN"
HOME_VARIABLE = "NEVE_HOME"
STACK_VARIABLE = "NEVE_STACK"
RETRY_VARIABLE = "NEVE_RETRY_S"
STACK_DEFAULT = "default"
RETRY_MAX_S = 3600.0


@dataclass(frozen=True, slots=True)
class Target:
    """A service and how it was found."""

    url: str
    token: str | None
    source: str


def connect(url: str | None = None, token: str | None = None, *, timeout_s: float = 60.0) -> Client:
    """Return a client for the service that is meant.

    Args:
        url: Of the service; left out: `NEVE_URL`, or the running stack of this machine.
        token: Bearer token; left out: `NEVE_TOKEN`, or that stack's.
        timeout_s: Longest wait for one answer.

    Raises:
        UnavailableError: No URL was given, and no stack runs on this machine.
        CallerError: `NEVE_RETRY_S` is no number of seconds.
    """
    target = find_target(url, token)
    return Client(target.url, token=target.token, timeout_s=timeout_s, retry_s=_retry_s())


def _retry_s() -> float | None:
    """Return how long calls are repeated, by `NEVE_RETRY_S`, or None if it is not set."""
    text = os.environ.get(RETRY_VARIABLE)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= RETRY_MAX_S:
        raise CallerError(
            f"{RETRY_VARIABLE} is {text!r}, expected seconds from 0 to {RETRY_MAX_S:.0f}"
        )
    return seconds


def find_target(
    url: str | None = None,
    token: str | None = None,
    environ: Mapping[str, str] | None = None,
    stack: str | None = None,
) -> Target:
    """Return URL and token of the service that is meant.

    A token of a local stack is used for that stack's URL only.

    Args:
        url: Given by the user, or None.
        token: Given by the user, or None.
        environ: Where the variables are looked up; None: those of the process.
        stack: Name of the local stack; None: `NEVE_STACK`, else `default`.
    """
    environ = os.environ if environ is None else environ
    token = token or environ.get(TOKEN_VARIABLE) or None
    wanted, source = (url, "given") if url else (environ.get(URL_VARIABLE), URL_VARIABLE)
    local = _local(environ, stack or environ.get(STACK_VARIABLE) or STACK_DEFAULT)
    if wanted:
        own = local.token if local and local.url == wanted.rstrip("/") else None
        return Target(wanted, token or own, source)
    if local is None:
        raise UnavailableError(
            "no service is known: give a URL (--url or NEVE_URL), "
            "or start one on this machine with `neve up`"
        )
    return Target(local.url, token or local.token, local.source)


def _local(environ: Mapping[str, str], stack: str) -> Target | None:
    home = Path(environ.get(HOME_VARIABLE) or Path.home() / ".neve").expanduser()
    folder = home / stack
    try:
        state: Any = json.loads((folder / "state.json").read_text())
        token = (folder / "token").read_text().strip()
    except (OSError, ValueError):
        return None
    url = state.get("gateway_url") if isinstance(state, dict) else None
    return (
        Target(url.rstrip("/"), token, f"stack {stack!r}") if isinstance(url, str) and url else None
    )
