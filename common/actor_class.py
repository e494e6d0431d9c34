"""Actor classes that processes of other releases can call.

A process that calls an actor loads the actor's class from Ray. Ray pickles a class with its
methods by name and loads them from the caller's own modules. A caller of an older release lacks
methods that were added since. It cannot load the class, so all its calls fail, including calls
of methods that it has.
"""

import importlib
from collections.abc import Callable
from typing import Any


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
