"""The coordinator's actor, called from another process: deadlines, look-ups, errors.

Ray's errors are translated here.
"""

import asyncio
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
