"""Tries what `neve serve` would need, in a process of its own: for `neve doctor` and `neve status`.

    python -m neve.serve.trial

It reads the environment of `neve serve`: `RAY_ADDRESS`, `NEVE_CONFIG`, `NEVE_STORE_URL` and so on,
and prints a JSON document of results. Ray may hang for minutes, and cannot be interrupted; this
process can be ended.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from common.errors import CompactionError, ConfigError
from common.units import format_count
from neve.serve.preflight import ADDRESS_VARIABLE, checked_address, missing_resources, require_store

if TYPE_CHECKING:
    from common.settings import Settings

TRIAL_MAX_S = 180.0


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one thing that was tried."""

    what: str
    found: str
    """A sentence."""
    refused: bool = False
    """Whether `neve serve` would not start because of it."""
    odd: bool = False
    """Whether it would start, and say this."""


# -------------------------------------------------------------------------- For whoever asks for it


def try_cluster() -> tuple[Tried, ...]:
    """Try what the environment names; empty: it names no Ray cluster."""
    if not os.environ.get(ADDRESS_VARIABLE):
        return ()
    command = [sys.executable, "-m", "neve.serve.trial"]
    search = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            command, env=search, capture_output=True, text=True, timeout=TRIAL_MAX_S, check=False
        )
    except subprocess.TimeoutExpired:
        address = os.environ[ADDRESS_VARIABLE]
        why = f"the Ray cluster at {address} did not answer within {TRIAL_MAX_S:.0f} s"
        return (
            Tried("cluster", f"{why}: its head may be busy, or its network slow", refused=True),
        )
    document = done.stdout.strip().splitlines()
    if done.returncode or not document:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return (Tried("cluster", f"the check ended without a result: {last}", refused=True),)
    return tuple(Tried(**load) for load in json.loads(document[-1]))


# ----------------------------------------------------------------------------------- In its process


def main() -> None:
    """Try everything and print what came of it."""
    sys.stdout.write(json.dumps([asdict(attempt_try) for attempt_try in _tried()]) + "\n")


def _tried() -> Iterator[Tried]:
    from neve.service_settings import load_service_settings, setting_remarks

    try:
        settings = load_service_settings(None)
    except ConfigError as error:
        yield Tried("serve settings", str(error), refused=True)
        return
    remarks = setting_remarks(settings)
    yield from _outcome("serve settings", lambda: (_check_token(settings), remarks))
    yield from _outcome("serve store", lambda: ("it answers", require_store(settings.store)))
    yield from _outcome("cluster", lambda: _cluster(settings))


def _outcome(
    what: str, ask: "Callable[[], tuple[str, tuple[str, ...] | list[str]]]"
) -> Iterator[Tried]:
    try:
        found, odd = ask()
    except CompactionError as error:
        yield Tried(what, str(error), refused=True)
        return
    if odd:
        yield Tried(what, "; ".join(odd), odd=True)
    else:
        yield Tried(what, found)


def _check_token(settings: "Settings") -> str:
    from neve.gateway.actor import require_token

    require_token(settings)
    return "they can be used"


def _cluster(settings: "Settings") -> tuple[str, tuple[str, ...]]:
    address = checked_address(None, os.environ)
    # Ray is slow to load, and an address where nobody listens needs none of it.
    from neve.serve.watchdog import joined, nodes_of_cluster

    with joined(address):
        nodes = nodes_of_cluster()
    found = f"Ray {version('ray')} at {address} can be joined, {format_count(len(nodes), 'node')}"
    return found, tuple(missing_resources(settings, nodes))


if __name__ == "__main__":
    main()
