"""Compactors as Ray actors: which there are, started, shut down, killed.

The coordinator knows the module that starts them by its name alone: neither half imports the
other.
"""

import asyncio
import importlib
from contextlib import suppress
from typing import Any

import ray

from common.errors import CompactionError, UnavailableError
from common.settings import Settings
from common.wire import COORDINATOR_NAME, NAMESPACE, compactor_actor_name

STARTER = "compactor.actor"
ANSWER_MAX_S = 5.0
SHUT_DOWN_ANSWER_MAX_S = 10.0
_PREFIX = compactor_actor_name("")


def compactor_names() -> frozenset[str]:
    """Return the compactors that exist: that run, start, or wait for a node."""
    found = ray.util.list_named_actors(all_namespaces=True)
    own = (each["name"] for each in found if each["namespace"] == NAMESPACE)
    return frozenset(name.removeprefix(_PREFIX) for name in own if name.startswith(_PREFIX))


def shut_down_all() -> list[Any]:
    """Shut all compactors down side by side, and wait for those that answer.

    The coordinator starts no others in their place any more.

    Returns:
        Their actors. One that does not answer is not waited for.
    """
    _stop_scaling()
    names = sorted(map(compactor_actor_name, compactor_names()))
    compactors = [ray.get_actor(each, namespace=NAMESPACE) for each in names]
    calls = [each.shut_down.remote() for each in compactors]
    asked = [each.shut_down_max_s.remote() for each in compactors]
    answered: list[Any] = []
    if asked:
        answered, _ = ray.wait(asked, num_returns=len(asked), timeout=SHUT_DOWN_ANSWER_MAX_S)
    waits_s = [_longest_s(each) for each in answered]
    waited = [call for call, question in zip(calls, asked, strict=True) if question in answered]
    if waited:
        ray.wait(waited, num_returns=len(waited), timeout=max(waits_s))
    return compactors


def _stop_scaling() -> None:
    """Ask the coordinator to start nobody; one that is away, or silent, starts nobody either."""
    with suppress(ValueError, TimeoutError, ray.exceptions.RayError):
        coordinator = ray.get_actor(COORDINATOR_NAME, namespace=NAMESPACE)
        ray.get(coordinator.stop_scaling.remote(), timeout=ANSWER_MAX_S)


def _longest_s(question: Any) -> float:
    """Return the longest time that a compactor needs; 0: it has died."""
    try:
        return float(ray.get(question))
    except ray.exceptions.RayError:
        return 0.0


class RayCompactorLever:
    """Starts and ends compactor actors. Every method raises `UnavailableError` if Ray fails."""

    def __init__(
        self, settings: Settings, *, node_resource: str, log_folder: str, edition: str
    ) -> None:
        """Know what compactors are started with.

        Args:
            settings: All settings of the service.
            node_resource: A Ray resource of the node on which they run; empty: any node, or
                those with the resource of their group.
            log_folder: Where they keep their log files.
            edition: Names the settings and the release.
        """
        self._settings = settings
        self._more = {
            "node_resource": node_resource,
            "log_folder": log_folder,
            "edition": edition,
        }
        self._handles: dict[str, Any] = {}
        """Of compactors that this process has started: a dead one tells why it died."""

    @property
    def edition(self) -> str:
        """What compactors are started with now."""
        return self._more["edition"]

    async def names(self) -> frozenset[str]:
        """Return the compactors that exist: that run, start, or wait for a node."""
        try:
            return await asyncio.to_thread(compactor_names)
        except (ray.exceptions.RayError, RuntimeError) as error:
            raise UnavailableError(f"Ray does not say which actors there are: {error}") from error

    async def start(self, group: str, name: str) -> None:
        """Start a compactor; it may wait for a node."""
        try:
            # Asks Ray's head whether the name is in use, and may import much the first time.
            self._handles[name] = await asyncio.to_thread(self._start, group, name)
        except (ray.exceptions.RayError, RuntimeError, ValueError, CompactionError) as error:
            raise UnavailableError(f"compactor {name} cannot be started: {error}") from error

    def _start(self, group: str, name: str) -> Any:
        starter = importlib.import_module(STARTER).start
        return starter(self._settings, name=name, group=group, **self._more)

    async def shut_down(self, name: str, wait_max_s: float | None) -> None:
        """Let a compactor end its jobs and end for good; return at once."""
        actor = await self._actor(name)
        if actor is not None:
            actor.shut_down.remote(wait_max_s)

    async def kill(self, name: str) -> None:
        """End a compactor at once, for good."""
        actor = await self._actor(name)
        if actor is not None:
            await asyncio.to_thread(ray.kill, actor, no_restart=True)

    async def why_gone(self, name: str) -> str:
        """Return why a compactor that does not exist any more has died, as far as Ray says."""
        actor = self._handles.pop(name, None)
        if actor is None:
            return "its actor is gone"
        try:
            async with asyncio.timeout(ANSWER_MAX_S):
                await actor.ping.remote()
        except TimeoutError:
            return "its actor is gone"
        except ray.exceptions.RayError as error:
            return _short(str(error))
        return "its actor answers again"

    async def missing(self, group: str) -> str:
        """Return what compactors of a group need and no node has; empty: nothing, or unknown.

        On a cluster that grows, it is missing only until a node has come.
        """
        own = self._settings.groups.get(group)
        if own is None or not own.resource:
            return ""
        try:
            found = await asyncio.to_thread(ray.cluster_resources)
        except (ray.exceptions.RayError, RuntimeError) as error:
            raise UnavailableError(f"Ray does not say what its nodes have: {error}") from error
        return "" if found.get(own.resource) else f"no node has the Ray resource {own.resource!r}"

    async def _actor(self, name: str) -> Any:
        actor_name = compactor_actor_name(name)
        try:
            return await asyncio.to_thread(ray.get_actor, actor_name, namespace=NAMESPACE)
        except ValueError:
            return None
        except ray.exceptions.RayError as error:
            raise UnavailableError(f"Ray does not answer: {error}") from error


def _short(text: str) -> str:
    """Return the telling line of an error of Ray, which spans many."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "its actor is gone"
