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
from neve.client_errors import UnavailableError

URL_VARIABLE = "NEVE_URL"
TOKEN_VARIABLE = "NEVE_TOKEN"
HOME_VARIABLE = "NEVE_HOME"
STACK_VARIABLE = "NEVE_STACK"
STACK_DEFAULT = "default"


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
    """
    target = find_target(url, token)
    return Client(target.url, token=target.token, timeout_s=timeout_s)


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
