"""The coordinator's actor, called from another process: deadlines, look-ups, errors.

No error of Ray leaves this module.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import ray

from common.errors import CompactionError, UnavailableError
from common.wire import COORDINATOR_NAME, NAMESPACE, CompactorCalls

COMPACTOR_WAIT_MAX_S = 10.0
"""A compactor has time: it calls again anyway."""


def compactor_calls() -> CompactorCalls:
    """Return the coordinator for a compactor: whatever fails is an `UnavailableError`."""
    proxy = CoordinatorProxy(COMPACTOR_WAIT_MAX_S, raises_its_errors=False)
    return cast("CompactorCalls", proxy)


class CoordinatorProxy:
    """Has each method of the coordinator's actor, as a remote call.

    The actor is looked up by name, and again after it did not answer. A call that waits on
    purpose has an argument with `wait_max_s`; its deadline is so much later.
    """

    def __init__(self, wait_max_s: float, *, raises_its_errors: bool = True) -> None:
        """Connect to nothing; the first call looks the actor up.

        Args:
            wait_max_s: Longest look-up and call, beyond what the call waits on purpose.
            raises_its_errors: Raise the coordinator's own errors as they are.
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
                    # A look-up asks Ray's head and blocks: the loop must go on meanwhile.
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
                "it is being started, or the cluster has no room for it"
            ) from error

    def _own_error(self, cause: Exception) -> CompactionError:
        """Return the error for what the coordinator itself raised."""
        if self._raises_its_errors and isinstance(cause, CompactionError):
            return cause
        return UnavailableError(f"the coordinator failed: {type(cause).__name__}: {cause}")
