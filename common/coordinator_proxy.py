"""The coordinator's actor, called from another process: deadlines, look-ups, errors.

Ray's errors are translated here.
"""

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import ray

from common.errors import CompactionError, UnavailableError
from common.wire import COORDINATOR_NAME, NAMESPACE, CompactorCalls

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


# -------------------------------------------------------------------------------------- Actor class
# Actor classes that processes of other releases can call.
#
# A process that calls an actor loads the actor's class from Ray. Ray pickles a class with its
# methods by name and loads them from the caller's own modules. A caller of an older release lacks
# methods that were added since. It cannot load the class, so all its calls fail, including calls
# of methods that it has.


def callable_across_releases(kind: type) -> type:
    """Return a class for `ray.remote` that passes every public method on to `kind`.

    The methods are created here and belong to no module, so Ray pickles them by value. They
    refer to `kind` by name and import it only in the actor's own process.

    Args:
        kind: A class at module level. Its public methods are coroutines.
    """
    calls = {name: _passed_on(name) for name in dir(kind) if not name.startswith("_")}
    begin = _begin(kind.__module__, kind.__name__)
    # Ray names processes after the class, and operators look for them by that name.
    named = {"__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (), {"__init__": begin, **calls, **named})


def _begin(module: str, name: str) -> Callable[..., None]:
    def begin(self: Any, *values: Any, **named: Any) -> None:
        self.actor = getattr(importlib.import_module(module), name)(*values, **named)

    return begin


def _passed_on(name: str) -> Callable[..., Any]:
    async def call(self: Any, *values: Any, **named: Any) -> Any:
        return await getattr(self.actor, name)(*values, **named)

    return call
