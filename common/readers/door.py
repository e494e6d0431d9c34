"""Marks work that looks into bytes of others: done in a reader where the process has some.

The gateway and the coordinator say at their start which readers they have (`use`); whatever is
marked is done there from then on, whoever calls it. In compactors and in readers themselves,
which may die of a file, and in short commands, it is done at once.
"""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ClassVar, ParamSpec, TypeVar

from common.readers.pool import Readers
from common.settings import ReaderSettings
from common.telemetry import Log

P = ParamSpec("P")
T = TypeVar("T")


class _Door:
    readers: Readers | None = None
    modules: ClassVar[set[str]] = set()


def use(readers: Readers | None) -> None:
    """Let this process's readers do what is marked; None: it is done in the process itself."""
    _Door.readers = readers


def open_readers(settings: ReaderSettings, log: Log) -> Readers:
    """Let readers do what is marked from now on, as the settings want it; return them."""
    readers = Readers.of(settings, log, _Door.modules)
    use(readers)
    return readers


def in_reader(about: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Mark a function of a module that looks into bytes of others. It blocks.

    Its arguments and its result are plain values. In a process that has readers it raises
    `ReaderDeathError`, a `RequestError`, for what ends them.

    Args:
        about: What a call looks into, for errors: `"file {path}"`, by the function's arguments.
    """

    def marked(work: Callable[P, T]) -> Callable[P, T]:
        shape = signature(work)
        _Door.modules.add(work.__module__)

        @wraps(work)
        def asked(*args: P.args, **kwargs: P.kwargs) -> T:
            if (readers := _Door.readers) is None:
                return work(*args, **kwargs)
            told = about.format(**shape.bind(*args, **kwargs).arguments)
            # By its name in its module, a reader finds `asked`, and has no readers itself.
            found: T = readers.ask(told, asked, args, kwargs)
            return found

        return asked

    return marked
