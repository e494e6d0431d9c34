"""Classes of work by shares: bytes in proportion, nothing saved up, nobody starved."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.model.job import CLASS_WIDTH, Job, JobAction
from common.model.tablet import TabletId
from common.spi.controller import DEFAULT_SHARES, ShareClass
from coordinator.core.queue import JobQueue
from coordinator.core.queue_index import HEAD_START_BYTES, JOB_COST_BYTES, FairShare
from tests.support.planning import job

pytestmark = pytest.mark.unit

MIB = 1024**2
GIB = 1024**3
BANDWIDTH = 400 * MIB
"""Bytes per second that jobs move together."""
PRIORITY = {
    ShareClass.URGENT: 2 * CLASS_WIDTH + 5,
    ShareClass.USER: CLASS_WIDTH + 5,
    ShareClass.SYSTEM: 5,
    ShareClass.STATISTICS: 0,
}


@dataclass
class Minute:
    """A queue that is always full, and compactors that are never idle."""

    shares: dict[ShareClass, float]
    seed: int
    queue: JobQueue = field(init=False)
    moved: Counter[ShareClass] = field(default_factory=Counter)
    """Bytes handed out by class."""
    order: list[ShareClass] = field(default_factory=list)
    now_s: float = 0.0
    _made: int = 0
    _classes: dict[str, ShareClass] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fair = FairShare(shares=self.shares)
        self.queue = JobQueue(GIB, 1_000_000, shares=self.fair)
        self.chance = random.Random(self.seed)

    def offer(self, share_class: ShareClass, size_bytes: int | None = None) -> None:
        """Offer a job; its size is drawn unless it is said."""
        self._made += 1
        size = size_bytes or self.chance.randint(256 * 1024, 24 * MIB)
        name, table = f"j{self._made}", f"t{self.chance.randint(0, 4)}"
        analysis = share_class is ShareClass.STATISTICS
        made = job(
            name,
            PRIORITY[share_class],
            tablet=TabletId(table, name.encode()),
            input_bytes=0 if analysis else size,
            action=(JobAction.ANALYZE if analysis else JobAction.REWRITE).value,
        )
        self._classes[name] = share_class
        self.queue.offer(made, self.now_s)

    def take(self) -> Job | None:
        """Hand a job out; time passes while it moves its bytes."""
        taken = self.queue.take()
        if taken is not None:
            share_class = self._classes[taken.id]
            size = taken.cost_bytes + JOB_COST_BYTES
            self.moved[share_class] += size
            self.order.append(share_class)
            self.now_s += size / BANDWIDTH
        return taken

    def run(self, seconds: float, *busy: ShareClass) -> None:
        """Keep classes busy for a time."""
        end_s = self.now_s + seconds
        waiting = Counter(self._classes[each.id] for each in self.queue)
        while self.now_s < end_s:
            for share_class in busy:
                while waiting[share_class] < 5:
                    self.offer(share_class)
                    waiting[share_class] += 1
            taken = self.take()
            assert taken is not None
            waiting[self._classes[taken.id]] -= 1


REWRITES = (ShareClass.SYSTEM, ShareClass.USER, ShareClass.URGENT)


@settings(max_examples=25)
@given(
    system=st.integers(100, 1000),
    user=st.integers(100, 1000),
    urgent=st.integers(100, 1000),
    seed=st.integers(0, 10**6),
)
def test_over_a_minute_of_full_load_each_class_is_within_a_tenth_of_its_shares(
    system: int, user: int, urgent: int, seed: int
) -> None:
    shares = dict(zip(REWRITES, (float(system), float(user), float(urgent)), strict=True))
    minute = Minute({**DEFAULT_SHARES, **shares}, seed)
    minute.run(20, *REWRITES)
    minute.moved.clear()
    minute.run(60, *REWRITES)
    total = sum(minute.moved.values())
    for each, granted in shares.items():
        wanted = granted / sum(shares.values())
        assert minute.moved[each] / total == pytest.approx(wanted, rel=0.1), each


def test_two_classes_with_shares_of_100_and_300_get_25_and_75_percent() -> None:
    minute = Minute({**DEFAULT_SHARES, ShareClass.SYSTEM: 100.0, ShareClass.USER: 300.0}, 1)
    minute.run(60, ShareClass.SYSTEM, ShareClass.USER)
    total = sum(minute.moved.values())
    assert minute.moved[ShareClass.SYSTEM] / total == pytest.approx(0.25, abs=0.05)
    assert minute.moved[ShareClass.USER] / total == pytest.approx(0.75, abs=0.05)


@given(st.lists(st.integers(50, 2000), min_size=2, max_size=5), st.integers(0, 1000))
@settings(max_examples=15)
def test_more_shares_never_mean_fewer_bytes(drawn: list[int], seed: int) -> None:
    parts = []
    for shares in sorted(drawn):
        minute = Minute({**DEFAULT_SHARES, ShareClass.SYSTEM: float(shares)}, seed)
        minute.run(30, ShareClass.SYSTEM, ShareClass.USER)
        parts.append(minute.moved[ShareClass.SYSTEM])
    slack = 48 * MIB + JOB_COST_BYTES  # The size of one job.
    assert all(more >= less - slack for less, more in pairwise(parts))


def test_what_a_class_does_not_use_others_get() -> None:
    minute = Minute(dict(DEFAULT_SHARES), 2)
    minute.run(10, ShareClass.STATISTICS)
    assert minute.moved[ShareClass.STATISTICS] >= 10 * BANDWIDTH
    minute.moved.clear()
    minute.run(10, ShareClass.SYSTEM, ShareClass.STATISTICS)
    assert minute.moved[ShareClass.URGENT] == minute.moved[ShareClass.USER] == 0
    total = sum(minute.moved.values())
    assert minute.moved[ShareClass.SYSTEM] / total == pytest.approx(10 / 11, rel=0.1)


@pytest.mark.parametrize(
    ("flood", "other"),
    [
        (ShareClass.USER, ShareClass.SYSTEM),
        (ShareClass.SYSTEM, ShareClass.USER),
        (ShareClass.URGENT, ShareClass.SYSTEM),
        (ShareClass.USER, ShareClass.STATISTICS),
    ],
)
def test_a_flood_of_one_class_starves_no_other(flood: ShareClass, other: ShareClass) -> None:
    minute = Minute({**DEFAULT_SHARES, ShareClass.URGENT: 1000.0}, 3)
    for _ in range(20_000):
        minute.offer(flood, MIB)
    minute.run(5, flood)
    minute.offer(other, MIB)
    came = len(minute.order)
    while minute.order[came:].count(other) == 0:
        assert minute.take() is not None
    shares, cost = minute.shares, 2 * MIB + JOB_COST_BYTES
    # What the flood may move before the other class has made up for its lag, and a job of each.
    most = HEAD_START_BYTES * shares[flood] / shares[other] + 2 * cost
    assert len(minute.order) - came <= most / cost + 1


def test_a_flood_that_ends_has_saved_up_no_turns() -> None:
    minute = Minute({**DEFAULT_SHARES, ShareClass.SYSTEM: 1000.0}, 4)
    minute.run(60, ShareClass.USER)
    while minute.take() is not None:
        pass
    minute.moved.clear()
    minute.run(60, ShareClass.USER, ShareClass.SYSTEM)
    total = sum(minute.moved.values())
    assert minute.moved[ShareClass.SYSTEM] / total == pytest.approx(0.5, rel=0.1)


def test_a_few_jobs_go_in_the_order_of_their_classes() -> None:
    minute = Minute(dict(DEFAULT_SHARES), 5)
    lower = (ShareClass.STATISTICS, ShareClass.SYSTEM, ShareClass.USER, ShareClass.URGENT)
    for share_class in lower:
        for _ in range(5):
            minute.offer(share_class, MIB)
    while minute.take() is not None:
        pass
    assert minute.order == [each for each in reversed(lower) for _ in range(5)]


def test_other_shares_hold_from_the_next_job_on() -> None:
    minute = Minute({**DEFAULT_SHARES, ShareClass.SYSTEM: 1000.0}, 6)
    minute.run(30, ShareClass.SYSTEM, ShareClass.USER)
    minute.fair.set_shares({**DEFAULT_SHARES, ShareClass.SYSTEM: 250.0})
    minute.moved.clear()
    minute.run(60, ShareClass.SYSTEM, ShareClass.USER)
    total = sum(minute.moved.values())
    assert minute.moved[ShareClass.SYSTEM] / total == pytest.approx(0.2, rel=0.1)
    minute.queue.check()
