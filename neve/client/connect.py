"""Find the service: from the arguments, else the environment, else the local stack.

Reads the state file of a local stack as plain JSON. Imports only `neve.client` and
`neve.api` of the project.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from neve.api.files import open_regular
from neve.client import Client
from neve.client.errors import CallerError, UnavailableError

URL_VARIABLE = "NEVE_URL"
TOKEN_VARIABLE = "NEVE_TOKEN"
TOKEN_FILE_VARIABLE = "NEVE_TOKEN_FILE"
AUTHORITIES_VARIABLE = "NEVE_CA_FILE"
CERTIFICATE_VARIABLE = "NEVE_CLIENT_CERTIFICATE"
HOME_VARIABLE = "NEVE_HOME"
STACK_VARIABLE = "NEVE_STACK"
RETRY_VARIABLE = "NEVE_RETRY_S"
RETRY_MAX_S = 3600.0
TOKEN_FILE_BYTES_MAX = 1024**2


@dataclass(frozen=True, slots=True)
class Target:
    """A service, and the source of its URL."""

    url: str
    token: str | None
    source: str
    faults: tuple[str, ...] = ()
    """Problems with the processes of a local stack, one sentence each."""


def connect(
    url: str | None = None,
    token: str | None = None,
    *,
    stack: str | None = None,
    timeout_s: float = 60.0,
) -> Client:
    """Return a client for the selected service.

    Args:
        url: URL of the service; default: `NEVE_URL`, or the running local stack.
        token: Bearer token; default: `NEVE_TOKEN`, the content of the file `NEVE_TOKEN_FILE`,
            or the token of the local stack.
        stack: Name of a local stack, if several run.
        timeout_s: Longest wait for one answer.

    Raises:
        UnavailableError: No URL was given, and no stack runs on this machine.
        CallerError: Several stacks run and none is named, `NEVE_RETRY_S` is not a valid number
            of seconds, or a file that a variable names cannot be read.
    """
    target = find_target(url, token, stack=stack)
    return Client(
        target.url,
        token=target.token,
        timeout_s=timeout_s,
        retry_s=_retry_s(),
        authorities=os.environ.get(AUTHORITIES_VARIABLE) or None,
        certificate=os.environ.get(CERTIFICATE_VARIABLE) or None,
    )


def _given_token(environ: Mapping[str, str]) -> str | None:
    """Return the token from the environment, given directly or in a file, or None.

    Raises:
        CallerError: The file cannot be read, or is empty.
    """
    if token := environ.get(TOKEN_VARIABLE):
        return token
    if not (path := environ.get(TOKEN_FILE_VARIABLE)):
        return None
    try:
        with open_regular(Path(path).expanduser()) as file:
            token = file.read(TOKEN_FILE_BYTES_MAX).decode().strip()
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or "it is no text"
        raise CallerError(
            f"{TOKEN_FILE_VARIABLE} names {path}, which is not readable: {cause}"
        ) from error
    if not token:
        raise CallerError(f"{TOKEN_FILE_VARIABLE} names {path}, which is empty")
    return token


def _retry_s() -> float | None:
    """Return how long calls are retried, from `NEVE_RETRY_S`; None if it is not set."""
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
    """Return URL and token of the selected service.

    Order of precedence: the URL and the stack of the arguments, those of the environment, the
    only running stack. The token of a local stack is used for the URL of that stack only.

    Args:
        url: URL from the user, or None.
        token: Token from the user, or None.
        environ: Environment variables; None: those of the process.
        stack: Name of a local stack from the user; None: `NEVE_STACK`, if it is set.

    Raises:
        UnavailableError: No URL was given, and no stack, or not the named one, runs.
        CallerError: Several stacks run, and none is named.
    """
    environ = os.environ if environ is None else environ
    token = token or _given_token(environ)
    stacks = _running_stacks(environ)
    address, source = (url, "given") if url else (environ.get(URL_VARIABLE), URL_VARIABLE)
    if address and (url or not stack):
        own = [target for target in stacks.values() if target.url == address.rstrip("/")]
        named = own[0] if own else Target(address, None, source)
        return replace(named, url=address, token=token or named.token, source=source)
    local = _choose_stack(stacks, stack or environ.get(STACK_VARIABLE) or None)
    return replace(local, token=token or local.token)


def _choose_stack(stacks: Mapping[str, Target], name: str | None) -> Target:
    """Return the named stack; without a name, the only one."""
    if name is not None and name in stacks:
        return stacks[name]
    names = ", ".join(sorted(stacks))
    if name is not None:
        others = f"; running: {names}" if stacks else ""
        raise UnavailableError(
            f"no stack {name!r} runs on this machine{others}: start it with"
            f" `neve up --stack {name}`"
        )
    if not stacks:
        raise UnavailableError(
            "no service is known: give a URL (--url or NEVE_URL), "
            "or start one on this machine with `neve up`"
        )
    if len(stacks) > 1:
        raise CallerError(
            f"{len(stacks)} stacks run on this machine: {names}; say which one is meant with"
            f" --stack or {STACK_VARIABLE}"
        )
    return next(iter(stacks.values()))


def _running_stacks(environ: Mapping[str, str]) -> dict[str, Target]:
    """Return the running local stacks that have a gateway, by name."""
    home = Path(environ.get(HOME_VARIABLE) or Path.home() / ".neve").expanduser()
    targets = {
        path.parent.name: _target_of_folder(path.parent)
        for path in sorted(home.glob("*/state.json"))
    }
    return {name: target for name, target in targets.items() if target is not None}


def _target_of_folder(folder: Path) -> Target | None:
    """Return the target of the stack in a folder, or None if the stack does not run."""
    try:
        state: Any = json.loads((folder / "state.json").read_text())
        token = (folder / "token").read_text().strip()
    except (OSError, ValueError):
        return None
    url = state.get("gateway_url") if isinstance(state, dict) else None
    if not isinstance(url, str) or not url:
        return None
    processes = [process for process in state.get("processes") or () if isinstance(process, dict)]
    ended = [
        str(process.get("role", "")) for process in processes if _has_ended(process.get("pid"))
    ]
    if processes and len(ended) == len(processes):
        return None  # The machine crashed: the state file outlived its processes.
    faults = tuple(_faults(folder, ended))
    return Target(url.rstrip("/"), token, f"stack {folder.name!r}", faults)


SUPERVISOR = "supervisor"
"""Role of the process that restarts the others of its stack."""


def _faults(folder: Path, ended: list[str]) -> Iterator[str]:
    """Yield a sentence with a remedy for each ended or repaired process of a stack.

    Args:
        folder: Folder of the stack.
        ended: Roles of the ended processes.
    """
    name, others = folder.name, ", ".join(role for role in ended if role != SUPERVISOR)
    if SUPERVISOR in ended:
        parts = f" and {others}" if others else ""
        yield (
            f"supervisor{parts} of stack {name!r} ended: run `neve up --stack {name}`, which"
            " starts what is missing"
        )
        return
    repairs: Any = {}
    with suppress(OSError, ValueError):
        repairs = json.loads((folder / "repairs.json").read_text())
    if others and not repairs:
        yield f"{others} of stack {name!r} ended; the supervisor starts it again"
    for part, note in repairs.items() if isinstance(repairs, dict) else ():
        yield f"{part} of stack {name!r} is {note}"


def _has_ended(pid: object) -> bool:
    """Return whether no process has this id, or only a zombie has it."""
    try:
        os.kill(int(pid), 0)  # type: ignore[call-overload]  # as a file has it
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return True
    except (OSError, TypeError, ValueError, IndexError):
        # Another user's process, or an unexpected file: let the call to the gateway decide.
        return False
    return state == "Z"
