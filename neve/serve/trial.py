"""Tests the requirements of `neve serve` in its own process, for `neve doctor` and `neve status`.

    python -m neve.serve.trial

The process reads the environment of `neve serve` (`RAY_ADDRESS`, `NEVE_CONFIG`, `NEVE_STORE_URL`
and so on) and prints the results as a JSON document. Ray may hang for minutes and cannot be
interrupted; a separate process can be killed.
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
    """Result of one check."""

    what: str
    found: str
    """The result as a sentence."""
    refused: bool = False
    """Whether this prevents the start of `neve serve`."""
    odd: bool = False
    """Whether `neve serve` would start with this warning."""


# -------------------------------------------------------------------------- In the caller's process


def try_cluster() -> tuple[Tried, ...]:
    """Check the cluster of the environment; return no results if `RAY_ADDRESS` is not set."""
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


# ---------------------------------------------------------------------- In the process of the trial


def main() -> None:
    """Run all checks and print their results."""
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
        outcome, odd = ask()
    except CompactionError as error:
        yield Tried(what, str(error), refused=True)
        return
    if odd:
        yield Tried(what, "; ".join(odd), odd=True)
    else:
        yield Tried(what, outcome)


def _check_token(settings: "Settings") -> str:
    from neve.gateway.actor import require_token

    require_token(settings)
    return "they can be used"


def _cluster(settings: "Settings") -> tuple[str, tuple[str, ...]]:
    address = checked_address(None, os.environ)
    # Ray is slow to load, and is not needed for an address without a server.
    from neve.serve.watchdog import joined, nodes_of_cluster

    with joined(address):
        nodes = nodes_of_cluster()
    sentence = (
        f"Ray {version('ray')} at {address} can be joined, {format_count(len(nodes), 'node')}"
    )
    return sentence, tuple(missing_resources(settings, nodes))


if __name__ == "__main__":
    main()
