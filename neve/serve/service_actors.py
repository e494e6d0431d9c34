"""Coordinator and gateway on a Ray cluster: find, start, replace and end them.

Ray must be initialised, as a driver of the cluster or through Ray Client.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import ray

import coordinator.actor
import neve.gateway.actor
from common.digests import digest
from common.errors import ConfigError
from common.settings import Settings
from common.wire import (
    COORDINATOR_NAME,
    GATEWAY_NAME,
    NAMESPACE,
    PIN_AMOUNT,
    CoordinatorStatus,
)
from coordinator.ray_compactors import shut_down_all
from neve.release import __version__
from neve.serve.watch import Sight

ANSWER_WAIT_S = 5.0
NAME_GONE_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class _Part:
    """One actor of the service, and the method that checks whether it works."""

    name: str
    actor: str
    start: Callable[..., Any]
    question: str


PARTS = {
    part.name: part
    for part in (
        _Part("coordinator", COORDINATOR_NAME, coordinator.actor.start, "ping"),
        _Part("gateway", GATEWAY_NAME, neve.gateway.actor.start, "address"),
    )
}
"""In start order."""


def edition_of(settings: Settings) -> str:
    """Return a digest that identifies a service's settings and release."""
    told = asdict(replace(settings, sources={}))
    return digest([__version__, json.dumps(told, sort_keys=True, default=str)])


class ServiceActors:
    """The two actors that exist once per service."""

    def __init__(self, settings: Settings) -> None:
        """Keep the settings; start nothing."""
        self._settings = settings
        self._edition = edition_of(settings)

    def look(self, part: str) -> Sight:
        """Return the condition of an actor; wait at most `ANSWER_WAIT_S` for its answer."""
        actor = self._actor(part)
        if actor is None:
            return Sight.GONE
        if self._ask(actor, PARTS[part].question) is not None:
            return Sight.ANSWERS
        return Sight.SILENT if self.is_placeable() else Sight.WAITS

    def is_placeable(self) -> bool:
        """Return whether a node has the resource that the settings require for the service."""
        wanted = self._settings.cluster.service_resource
        return not wanted or bool(ray.cluster_resources().get(wanted))

    def start(self, part: str) -> None:
        """Start an actor, or find the running one.

        Raises:
            ConfigError: The gateway does not start.
        """
        wanted = self._settings.cluster.service_resource
        pin = {"resources": {wanted: PIN_AMOUNT}} if wanted else {}
        PARTS[part].start(self._settings, edition=self._edition, **pin)

    def is_other(self, part: str) -> bool:
        """Return whether an actor answers and has other settings or another release.

        An actor that does not answer does not count as other; the watchdog handles its silence.
        """
        actor = self._actor(part)
        edition = None if actor is None else self._ask(actor, "edition")
        return edition is not None and edition != self._edition

    def restart(self, part: str) -> None:
        """End the process of an actor; Ray restarts it with its previous settings."""
        actor = self._actor(part)
        if actor is not None:
            ray.kill(actor, no_restart=False)

    def end(self, part: str, wait: Callable[[float], object]) -> None:
        """End an actor permanently; wait until its name is free.

        Args:
            part: The actor to end.
            wait: Waits for a number of seconds.

        Raises:
            ConfigError: The name does not become free.
        """
        for _ in range(int(NAME_GONE_WAIT_S / 0.1)):
            actor = self._actor(part)
            if actor is None:
                return
            ray.kill(actor, no_restart=True)
            wait(0.1)
        raise ConfigError(f"{part} does not end: Ray still knows it after {NAME_GONE_WAIT_S:.0f} s")

    def gateway_address(self) -> str:
        """Return the gateway's address, or an empty text if it does not answer."""
        actor = self._actor("gateway")
        told = None if actor is None else self._ask(actor, "reached_at")
        return "" if told is None else str(told)

    def problems(self) -> tuple[str, ...] | None:
        """Return the coordinator's problems, one sentence each; None if it does not answer."""
        actor = self._actor("coordinator")
        status = None if actor is None else self._ask(actor, "status")
        if not isinstance(status, CoordinatorStatus):
            return None
        scalings = [(each.group, each.scaling) for each in status.groups if each.scaling]
        return (
            *status.warnings,
            *status.store_warnings,
            *(f"group {group}: {each.blocked}" for group, each in scalings if each.blocked),
            *(f"group {group}: {each.missing}" for group, each in scalings if each.missing),
        )

    def drain_compactors(self) -> int:
        """Let every compactor end its jobs, then end it permanently; return their number."""
        compactors = shut_down_all()
        for compactor in compactors:  # One that did not answer has no job or is frozen.
            ray.kill(compactor, no_restart=True)
        return len(compactors)

    def _actor(self, part: str) -> Any:
        try:
            return ray.get_actor(PARTS[part].actor, namespace=NAMESPACE)
        except ValueError:
            return None

    def _ask(self, actor: Any, question: str) -> Any:
        """Return an actor's answer; None if it did not answer in time."""
        try:
            return ray.get(getattr(actor, question).remote(), timeout=ANSWER_WAIT_S)
        except (ray.exceptions.RayError, TimeoutError):
            return None
