"""Writers of lake tables next to a service, and what its attempts are doing meanwhile."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import redis

from tests.support.stack import Service

WRITER_PAUSE_S = 0.3


class WrittenTable(ABC):
    """A lake table with writers, its attached name, and the rows that these have acknowledged."""

    crowd_pause_s: float
    """Pause of a writer that creates as many versions as possible."""

    def __init__(self, service: Service, name: str) -> None:
        self.service, self.name = service, name

    @abstractmethod
    def append(self) -> None:
        """Append a file."""

    @abstractmethod
    def delete(self, share: float = 0.05) -> None:
        """Delete some rows by position."""

    @abstractmethod
    def crowd(self) -> None:
        """Create a version that no attempt has expected."""

    @abstractmethod
    def attach(self) -> None:
        """Let the service compact the table."""

    @abstractmethod
    def paths(self) -> set[str]:
        """Return the live data files, relative to the table."""

    @abstractmethod
    def stored(self) -> set[str]:
        """Return the service's own data files in the table's folder."""

    @abstractmethod
    def named(self) -> set[str]:
        """Return every data file that some version has added, in the same form."""

    @abstractmethod
    def check(self) -> None:
        """Compare the rows that readers see with those that were acknowledged."""

    def fill(self, files: int = 12) -> None:
        """Write small files, and delete some of their rows."""
        for _ in range(files):
            self.append()
        self.delete(0.1)

    def commits(self) -> int:
        """Return how many attempts have committed."""
        history = self.service.client.history(self.name)
        return sum(attempt.end == "committed" for attempt in history)

    def rests(self) -> bool:
        """Return whether the mirror has the head, and nothing runs or is planned."""
        plan = self.service.client.plan(self.name)
        listed = {file.path for file in self.service.client.files(self.name)}
        return listed == self.paths() and not plan.jobs and not plan.running

    def wait_until_at_rest(self) -> None:
        """Wait until nothing is left to do."""
        self.service.wait(f"rest of {self.name}", self.rests)

    def wait_until_clean(self) -> None:
        """Write versions until no file of the service is stored that none of them has."""

        def found() -> set[str]:
            if left := self.stored() - self.named():
                self.crowd()
            return left

        self.service.wait_until_none(f"clean storage of {self.name}", found, poll_max_s=2.0)

    def outlive_its_compactor(self) -> None:
        """Attach the table, and kill the compactor of an attempt that publishes."""
        service = self.service
        self.attach()
        # Other versions all the time: attempts conflict, mark and send again.
        with writing(self.crowd, pause_s=self.crowd_pause_s):
            compactor = service.wait(
                "an attempt with the mark", lambda: publisher(service), poll_max_s=0.01
            )
            service.kill(service.compactor(compactor))
        service.wait("two compactors", service.everybody_beats)
        self.append()
        self.delete()
        self.wait_until_at_rest()
        self.check()
        assert self.commits() >= 1
        service.client.detach(self.name)

    def outlive_the_coordinator(self) -> None:
        """Attach the table, and kill the coordinator next to writers."""
        service = self.service
        self.attach()
        with writing(self.append, self.delete):
            service.wait("a commit", lambda: self.commits() >= 1)
            service.kill(service.actor("CoordinatorActor"))
            before = self.commits()
            service.wait("another commit", lambda: self.commits() > before)
        self.wait_until_at_rest()
        self.check()
        service.client.detach(self.name)


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


def publisher(service: Service) -> str:
    """Return a compactor whose attempt may have sent something to a log; empty if there is none."""
    with redis.Redis.from_url(service.stack.redis_url) as client:
        keys = list(client.scan_iter("neve:*:publishing", 1000))
        attempts = {field.decode() for key in keys for field in client.hgetall(key)}
    jobs = service.client.jobs() if attempts else []
    return next((job.compactor for job in jobs if job.attempt in attempts), "")
