"""Writers of lake tables next to a service, and what its attempts are doing meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import redis

from tests.support.stack import Service

WRITER_PAUSE_S = 0.3


@contextmanager
def writing(
    *works: Callable[[], None], pause_s: float = WRITER_PAUSE_S
) -> Iterator[list[BaseException]]:
    """Call functions in turn, again and again in a thread, for the length of a block."""
    over, errors = threading.Event(), list[BaseException]()

    def write() -> None:
        try:
            while not over.is_set():
                for work in works:
                    work()
                    if over.wait(pause_s):
                        return
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield errors
    finally:
        over.set()
        thread.join()
        assert not errors, errors


def publishing(service: Service) -> list[bytes]:
    """Return the attempts that may have sent something to a log."""
    with redis.Redis.from_url(service.stack.redis_url) as client:
        keys = list(client.scan_iter("neve:*:publishing"))
        return [field for key in keys for field in client.hgetall(key)]
