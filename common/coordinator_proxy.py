"""The actors of a service, from outside: calls of the coordinator, the start of both kinds.

Calls have deadlines and look the actor up. Ray's errors are translated here.
"""

import ast
import asyncio
import importlib
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import ray

from common.errors import CompactionError, UnavailableError
from common.settings import DEFAULT_GROUP, Settings
from common.wire import (
    COORDINATOR_NAME,
    NAMESPACE,
    PIN_AMOUNT,
    CompactorCalls,
    compactor_actor_name,
)

COMPACTOR_WAIT_MAX_S = 10.0
"""Longer, because a compactor repeats its calls anyway."""


def compactor_calls() -> CompactorCalls:
    """Return the coordinator for a compactor: every failure is an `UnavailableError`."""
    proxy = CoordinatorProxy(COMPACTOR_WAIT_MAX_S, raises_its_errors=False)
    return cast("CompactorCalls", proxy)


class CoordinatorProxy:
    """Provides each method of the coordinator's actor as a remote call.

    The actor is looked up by name, and looked up again after a call was not answered. A call
    that waits by design has an argument with `wait_max_s`, which is added to its deadline.
    """

    def __init__(self, wait_max_s: float, *, raises_its_errors: bool = True) -> None:
        """Create a proxy; the first call looks up the actor.

        Args:
            wait_max_s: Longest time for look-up and call, without the wait that the call asks for.
            raises_its_errors: Whether the coordinator's own errors are raised unchanged.
        """
        self._wait_max_s = wait_max_s
        self._raises_its_errors = raises_its_errors
        self._actor: Any = None

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        """Return a method of the actor as a remote call."""
        if name.startswith("_"):
            raise AttributeError(f"{name!r} is no call of the coordinator")
        return partial(self._call, name)

    async def _call(self, method: str, *values: object, **named: object) -> Any:
        waits_s = [getattr(value, "wait_max_s", 0.0) for value in (*values, *named.values())]
        try:
            async with asyncio.timeout(max(waits_s, default=0.0) + self._wait_max_s):
                if self._actor is None:
                    # A look-up blocks on Ray's head, so it runs in a thread to keep the loop free.
                    self._actor = await asyncio.to_thread(
                        ray.get_actor, COORDINATOR_NAME, namespace=NAMESPACE
                    )
                remote = getattr(self._actor, method, None)
                if remote is None:
                    raise UnavailableError(
                        f"the coordinator runs an older release, which does not know {method!r};"
                        " upgrade it first"
                    )
                return await remote.remote(*values, **named)
        except ray.exceptions.RayTaskError as error:
            raise self._own_error(error.cause) from error
        except (ValueError, TimeoutError, ray.exceptions.RayError) as error:
            self._actor = None
            raise UnavailableError(
                f"the coordinator does not answer ({type(error).__name__}): "
                "it is starting, or the cluster has no room for it"
            ) from error

    def _own_error(self, cause: Exception) -> CompactionError:
        """Return the error for what the coordinator itself raised."""
        if self._raises_its_errors and isinstance(cause, CompactionError):
            return cause
        return UnavailableError(f"the coordinator failed: {type(cause).__name__}: {cause}")


# ------------------------------------------------------------------------------------------- Start
# A process that calls an actor loads the actor's class from Ray. Ray pickles a class with its
# methods by name and loads them from the caller's own modules. A caller of an older release lacks
# methods that were added since. It could not load the class, so all its calls would fail, including
# calls of methods that it has. Here the class for Ray is made from the names of the methods, which
# are read from the source: neither the process that starts an actor nor its callers import the
# actor's module.


COORDINATOR = "coordinator.actor:CoordinatorActor"
COMPACTOR = "compactor.actor:CompactorActor"
CALLS_AT_ONCE = 10_000
"""Compactors wait in calls of the coordinator, so calls may last long; none of them blocks a
thread."""
COMPACTOR_CALLS_AT_ONCE = 1000
"""Likewise `stay` and `ping` of a compactor."""


def start_coordinator(
    settings: Settings,
    *,
    log_folder: str = "",
    node_resource: str = "",
    edition: str = "",
    **options: Any,
) -> Any:
    """Start the coordinator as a detached actor, or return the running one.

    Args:
        settings: All settings of the service.
        log_folder: Folder of its log file; if empty, Ray keeps its output.
        node_resource: Ray resource of the node on which it starts compactors; if empty, any node,
            or those with the resource of the group.
        edition: Identifies settings and release, to distinguish this coordinator from others.
        options: Further Ray actor options, such as `resources`.
    """
    actor = detached(actor_class(COORDINATOR), COORDINATOR_NAME, CALLS_AT_ONCE, **options)
    return actor.remote(settings, log_folder, node_resource, edition)


def start_compactor(
    settings: Settings,
    *,
    name: str,
    group: str = DEFAULT_GROUP,
    node_resource: str = "",
    log_folder: str = "",
    edition: str = "",
    **options: Any,
) -> Any:
    """Start a compactor as a detached actor, or return the one that runs by this name.

    Args:
        settings: All settings of the service.
        name: Name of the compactor, unique in the cluster.
        group: The compaction group that it serves.
        node_resource: A Ray resource of the node for the compactor and its Spark executors;
            empty: a node with the resource of its group, or any node, with the executors on
            the same node.
        log_folder: Folder of the log files of the compactor and its Spark application; empty:
            none.
        edition: Identifies settings and release, to distinguish this compactor from others.
        options: Further Ray actor options.
    """
    group_settings = settings.groups.get(group)
    resource = group_settings.resource if group_settings is not None else ""
    resources = {resource: 1.0} if resource else {}
    if node_resource:
        resources = {node_resource: PIN_AMOUNT}
    named = compactor_actor_name(name)
    kind = actor_class(COMPACTOR)
    actor = detached(kind, named, COMPACTOR_CALLS_AT_ONCE, resources=resources, **options)
    return actor.remote(
        settings,
        name,
        group=group,
        node_resource=node_resource,
        log_folder=log_folder,
        edition=edition,
    )


def detached(kind: type, name: str, calls_at_once: int, **options: Any) -> Any:
    """Return a class as an actor of a service: one of its name, which outlives its starter.

    Args:
        kind: The class.
        name: Name of the actor, unique in the cluster.
        calls_at_once: Calls that it takes concurrently.
        options: Further Ray actor options.
    """
    return ray.remote(kind).options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_concurrency=calls_at_once,
        num_cpus=0,
        **options,
    )


def actor_class(kind: str) -> type:
    """Return a class for `ray.remote` that passes every public method on to another class.

    Its methods belong to no module, so Ray pickles them by value. They refer to the other class by
    name and import it only in the actor's own process.

    Args:
        kind: The other class, as `module:class`. Its public methods are coroutines.
    """
    module, _, name = kind.partition(":")
    calls = {call: _passed_on(call) for call in _public_methods(module, name)}
    # Ray names processes after the class, and operators look for them by that name.
    return type(name, (), {"__init__": _begin(module, name), "__module__": module, **calls})


def _public_methods(module: str, name: str) -> list[str]:
    spec = find_spec(module)
    assert spec is not None, module
    assert spec.origin is not None, module
    body = ast.parse(Path(spec.origin).read_bytes()).body
    kind = next(part for part in body if isinstance(part, ast.ClassDef) and part.name == name)
    methods = (part.name for part in kind.body if isinstance(part, ast.AsyncFunctionDef))
    return [method for method in methods if not method.startswith("_")]


def _begin(module: str, name: str) -> Callable[..., None]:
    def begin(self: Any, *values: Any, **named: Any) -> None:
        self.actor = getattr(importlib.import_module(module), name)(*values, **named)

    return begin


def _passed_on(name: str) -> Callable[..., Any]:
    async def call(self: Any, *values: Any, **named: Any) -> Any:
        return await getattr(self.actor, name)(*values, **named)

    return call
