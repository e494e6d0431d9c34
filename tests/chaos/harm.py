"""Does harm to a running stack, as the drawn faults say, and undoes what it froze."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import redis

from tests.chaos.disk import Disk
from tests.chaos.draw import Fault, Harm, How, Part
from tests.chaos.story import Story
from tests.support.stack import Service, words_of

VICTIM_WAIT_MAX_S = 12.0
"""So long is looked for a process that is just being started again."""
AIM_MAX_S = 4.0
POLL_S = 0.05
SUPERVISOR = "neve.local.supervisor"
SPARK_MAIN = "org.apache.spark.api.python.PythonGatewayServer"
ACTORS = {
    Part.COMPACTOR: "ray::CompactorActor",
    Part.COORDINATOR: "ray::CoordinatorActor",
    Part.GATEWAY: "ray::GatewayActor",
}


class Harmer:
    """Hurts one fault after the other; what is frozen thaws when its time has come."""

    def __init__(
        self, story: Story, service: Service, up: Callable[[], object], disk: Disk | None = None
    ) -> None:
        """Hurt nothing yet.

        Args:
            story: Of the run.
            service: Is hurt.
            up: Does what `neve up` does.
            disk: Of the stack, if it can be filled.
        """
        self._story = story
        self.service = service
        self._up = up
        self.disk = disk
        self._frozen: list[tuple[float, str, list[psutil.Process]]] = []
        self.faults = 0

    def run(self, faults: Iterator[Fault], count_max: int, until_s: float) -> None:
        """Hurt until the load must end, or so many faults are done.

        Args:
            faults: As drawn.
            count_max: Most faults.
            until_s: No fault begins later than this, by the story's age.
        """
        try:
            for fault in faults:
                self._rest(fault.gap_s)
                late = self._story.age_s() > until_s
                if self._story.over.is_set() or late or self.faults >= count_max:
                    return
                if any(harm.aimed for harm in fault.harms):
                    self._aim()
                done = [self._hurt(harm) for harm in fault.harms]
                self.faults += any(done)
                if len(done) > 1 and all(done):
                    self._story.count("faults: two at once")
        finally:
            self._thaw(everything=True)

    def _rest(self, length_s: float) -> None:
        end_s = time.monotonic() + length_s
        while time.monotonic() < end_s and not self._story.over.wait(POLL_S):
            self._thaw()

    def _aim(self) -> None:
        """Wait a little until a job runs, so that somebody dies in the middle of it."""
        end_s = time.monotonic() + AIM_MAX_S
        # Redis is asked, not the service, which may be frozen and keep us waiting.
        with redis.Redis.from_url(self.service.stack.redis_url, socket_timeout=1.0) as store:
            while time.monotonic() < end_s:
                with suppress(redis.RedisError):
                    if any(store.scan_iter("neve:*:tablet:*:running", 1000)):
                        return
                self._rest(POLL_S)

    def _hurt(self, harm: Harm) -> bool:
        """Do one harm; return whether there was anybody to be hurt."""
        if harm.part is Part.DISK:
            return self._fill(harm)
        end_s = time.monotonic() + VICTIM_WAIT_MAX_S
        while not (found := self.victims(harm.part)):
            if time.monotonic() > end_s:
                self._story.say(f"nobody to {harm}")
                return False
            self._rest(POLL_S)
        found.sort(key=lambda process: process.pid)
        chosen = found if harm.part is Part.TASKS else [found[harm.which % len(found)]]
        pids = [process.pid for process in chosen]
        self._story.say(str(harm), pids=pids)
        self._story.count(f"fault: {harm.how} {harm.part}")
        self._strike(harm, chosen)
        return True

    def _strike(self, harm: Harm, chosen: list[psutil.Process]) -> None:
        if harm.how is How.FREEZE:
            for process in chosen:
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
            self._frozen.append((time.monotonic() + harm.lasts_s, str(harm), chosen))
        elif harm.part is Part.REDIS:
            self.service.restart_redis()
        else:
            for process in chosen:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        if harm.part is Part.SUPERVISOR:
            psutil.wait_procs(chosen, VICTIM_WAIT_MAX_S)
            self._up()

    def _fill(self, harm: Harm) -> bool:
        if self.disk is None:
            return False
        self._story.say(str(harm))
        self._story.count(f"fault: {harm.how} {harm.part}")
        with self.disk.filled():
            self._rest(harm.lasts_s)
        self._story.tell("disk has room again")
        return True

    def _thaw(self, *, everything: bool = False) -> None:
        now_s = time.monotonic()
        due = [each for each in self._frozen if everything or each[0] <= now_s]
        for each in due:
            self._frozen.remove(each)
            for process in each[2]:
                with suppress(psutil.NoSuchProcess):
                    process.resume()
            self._story.tell("thawed", harm=each[1])

    def victims(self, part: Part) -> list[psutil.Process]:
        """Return the processes of a part that live and are not frozen, by what they are."""
        return [each for each in self._found(part) if _runs(each)]

    def _found(self, part: Part) -> list[psutil.Process]:
        service = self.service
        if part in ACTORS:
            return service.titled(ACTORS[part])
        if part is Part.REDIS:
            return [
                p
                for p in service.processes()
                if words_of(p)[0].endswith(("redis-server", "valkey-server"))
            ]
        if part is Part.READER:
            return [p for p in service.processes() if "common.readers.fork_server" in words_of(p)]
        if part is Part.SUPERVISOR:
            return [p for p in service.processes() if any(SUPERVISOR in w for w in words_of(p))]
        if part is Part.DRIVER:
            return [p for p in service.processes() if "compactor.spark.child" in words_of(p)]
        if part is Part.JVM:
            return [p for p in service.processes() if SPARK_MAIN in words_of(p)]
        tasks = service.tasks()
        if part is Part.TASKS:
            return tasks
        # The executor is the JVM that started the Python processes.
        parents = {p.pid: p for task in tasks if (p := _parent(task)) is not None}
        return [p for p in parents.values() if words_of(p)[0].endswith("java")]


def _parent(process: psutil.Process) -> psutil.Process | None:
    with suppress(psutil.NoSuchProcess):
        return process.parent()
    return None


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() not in {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}
    except psutil.NoSuchProcess:
        return False
