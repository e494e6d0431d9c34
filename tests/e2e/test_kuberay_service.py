"""The overlay `laptop` of `k8s/` from nothing to work and back, under KubeRay's own autoscaler.

`neve serve` asks for compactors, Ray's autoscaler for pods, and the stand-in for Kubernetes
gives them: raylets on this machine. Run with `-s` to see how long each step took;
docs/benchmarks.md has figures.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from neve.api import Finished, Group, Job, Status
from tests.support.kubernetes.service import LaptopService
from tests.support.patience import SERVICE_S, vain_wait

pytestmark = [pytest.mark.slow, pytest.mark.long]

SMALL, LARGE = "small", "large"
PULL_ERROR = "image neve:0.1.0 not found"
APPENDS = 4
TABLET_ROWS = 10
LOOK_PAUSE_S = 1.0
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("text", pa.binary())])


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose tablets get one file with each append, and become one job each."""

    name: str
    tablets: int
    text_bytes: int
    """Of a row. It decides to which group the jobs go."""

    def rows(self, append: int) -> pa.Table:
        """Return every key once more, in another version."""
        ids = range(self.tablets * TABLET_ROWS)
        noise = random.Random(append)
        texts = [noise.randbytes(self.text_bytes) for _ in ids]
        return pa.table([ids, [append] * len(ids), texts], schema=SCHEMA)

    def create(self, service: LaptopService) -> None:
        location = service.tables / self.name
        location.mkdir()
        service.client.create_table(
            self.name,
            str(location),
            schema=SCHEMA,
            key=["id"],
            version_column="at",
            splits=[str(n * TABLET_ROWS - 1) for n in range(1, self.tablets)],
        )

    def fill(self, service: LaptopService) -> None:
        for append in range(APPENDS):
            service.client.append(self.name, self.rows(append))

    def check_rows(self, service: LaptopService) -> None:
        """Compare what a reader sees: of each key the newest version, once."""
        found = service.client.scan(self.name).sort_by("id").select(SCHEMA.names)
        assert found.cast(SCHEMA) == self.rows(APPENDS - 1)


VISITS = Table("visits", tablets=45, text_bytes=20)
CLICKS = Table("clicks", tablets=4, text_bytes=25_000)
"""Its jobs take long at the lowest limit that a group may have."""
DOCUMENTS = Table("documents", tablets=15, text_bytes=51_000)
"""Three files of a tablet, the fewest of a job, are larger than what goes to the group `small`."""
SLOW = "64KB"


@dataclass(slots=True)
class Watch:
    """Looks at the service again and again, and notes when something was first seen."""

    service: LaptopService
    seen_s: dict[str, float] = field(default_factory=dict)

    def until(self, what: str, holds: Callable[[Status], bool]) -> Status:
        """Look until something holds; note it, and return the look that showed it."""
        end_s = time.monotonic() + SERVICE_S
        while True:
            status = self.service.client.status()
            for group in status.groups:
                self._note(group, status)
            if status.committed:
                self.note("first job committed")
            if holds(status):
                self.note(what)
                return status
            if time.monotonic() >= end_s:
                described = f"{status}\n{self.service.cluster.describe()}"
                raise TimeoutError(f"{vain_wait(what, SERVICE_S)}\n{described}")
            time.sleep(LOOK_PAUSE_S)

    def until_at_rest(self, table: Table) -> None:
        def rests(_: Status) -> bool:
            plan = self.service.client.plan(table.name)
            return not (plan.jobs or plan.running)

        self.until(f"all of {table.name} committed", rests)

    def note(self, what: str) -> None:
        self.seen_s.setdefault(what, time.monotonic())

    def _note(self, group: Group, status: Status) -> None:
        own = [compactor for compactor in status.compactors if compactor.group == group.group]
        first = {
            "first job queued": bool(group.queued),
            "first compactor asked for": scaling_starting(group) > 0 or bool(own),
            "first compactor ready": any(each.ready for each in own),
            "first job runs": bool(group.running),
        }
        for what, holds in first.items():
            if holds:
                self.note(f"{group.group}: {what}")

    def note_pods(self) -> None:
        """Note when the first pod of each group ran, and when the last one was gone."""
        for group in (SMALL, LARGE):
            changes = [
                change for change in self.service.cluster.changes() if f"-{group}-" in change.pod
            ]
            runs = [change.at_s for change in changes if change.state == "Running"]
            gone = [change.at_s for change in changes if change.state == "Gone"]
            self.seen_s[f"{group}: first pod runs"] = min(runs)
            self.seen_s[f"{group}: last pod gone"] = max(gone)

    def show(self) -> None:
        began_s = min(self.seen_s.values())
        for what, at_s in sorted(self.seen_s.items(), key=lambda item: item[1]):
            print(f"{at_s - began_s:6.1f} s  {what}")


def scaling_starting(group: Group) -> int:
    return group.scaling.starting if group.scaling else 0


def group_of(status: Status, name: str) -> Group:
    (found,) = (group for group in status.groups if group.group == name)
    return found


def starts_failed(status: Status, name: str) -> int:
    scaling = group_of(status, name).scaling
    assert scaling is not None
    return scaling.starts_failed


def committed(service: LaptopService, table: Table) -> list[Finished]:
    found = service.client.history(table.name, count=1000)
    return [each for each in found if each.end == "committed"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaptopService]:
    began_s = time.monotonic()
    with LaptopService.start(tmp_path_factory.mktemp("laptop")) as service:
        print(f"start of the cluster → the service answers: {time.monotonic() - began_s:.1f} s")
        yield service


def test_from_nothing_to_work_and_back(service: LaptopService) -> None:
    watch = Watch(service)
    # A group without pods keeps its jobs, and no other group from its own.
    service.cluster.break_group(LARGE, PULL_ERROR)
    status = service.client.status()
    assert (status.compactors, service.cluster.pods(SMALL), service.cluster.pods(LARGE)) == (
        (),
        [],
        [],
    )

    jobs_wait_in_both_groups(service, watch)
    a_start_that_takes_long_is_said(service, watch)
    watch.until_at_rest(VISITS)
    VISITS.check_rows(service)
    assert len(committed(service, VISITS)) >= VISITS.tablets
    assert {each.group for each in committed(service, VISITS)} == {SMALL}

    a_lost_pod_loses_no_job(service, watch)
    a_start_that_fails_is_counted_and_tried_again(service, watch)
    everything_goes_when_nothing_is_left(service, watch)
    watch.note_pods()
    watch.show()


def jobs_wait_in_both_groups(service: LaptopService, watch: Watch) -> None:
    for table in (DOCUMENTS, VISITS):
        table.create(service)
    DOCUMENTS.fill(service)
    VISITS.fill(service)
    watch.until(
        "jobs of both groups wait",
        lambda status: (
            group_of(status, LARGE).queued == DOCUMENTS.tablets
            and group_of(status, SMALL).queued > 0
        ),
    )


def a_start_that_takes_long_is_said(service: LaptopService, watch: Watch) -> None:
    watch.until("large starts", lambda status: scaling_starting(group_of(status, LARGE)) == 1)
    service.cluster.wait_for(lambda: bool(service.cluster.pods(LARGE)), "a pod of large")
    (broken,) = service.cluster.pods(LARGE)
    assert (broken.state, broken.message) == ("ImagePullBackOff", PULL_ERROR)
    # The decision that starts it is made before it is one that starts.
    watch.until("large: its start is explained", lambda status: "1 starting" in reason(status))
    assert "1 starting, for up to" in service.neve("group", "show", LARGE)
    said = service.neve("status")
    assert "group large has no compactor yet: its 15 jobs wait" in said
    missing = "no node has the Ray resource 'neve_group_large'; Ray's autoscaler may add a node"
    assert missing in said, said


def reason(status: Status) -> str:
    scaling = group_of(status, LARGE).scaling
    return scaling.reason if scaling else ""


def a_lost_pod_loses_no_job(service: LaptopService, watch: Watch) -> None:
    client = service.client
    CLICKS.create(service)
    client.limit_group(SMALL, SLOW)
    CLICKS.fill(service)
    watch.until("a job in the middle", lambda _: bool(throttled(service)))
    job = throttled(service)[0]
    lost = service.pod_of(job.compactor)
    service.cluster.kill_pod(lost)
    watch.note("its pod killed")
    service.cluster.wait_for(lambda: lost not in pods_of(service, SMALL), "its end")
    watch.until("its attempt given up", lambda _: job.attempt in ends(service))
    client.limit_group(SMALL, None)
    watch.until_at_rest(CLICKS)
    CLICKS.check_rows(service)
    assert ends(service).pop(job.attempt) == "lost"
    assert job.id in {each.job for each in committed(service, CLICKS)}


def throttled(service: LaptopService) -> list[Job]:
    return [job for job in service.client.jobs() if job.throttled and job.table == CLICKS.name]


def ends(service: LaptopService) -> dict[str, str]:
    return {each.attempt: each.end for each in service.client.history(CLICKS.name, count=1000)}


def pods_of(service: LaptopService, group: str) -> set[str]:
    return {pod.name for pod in service.cluster.pods(group)}


def a_start_that_fails_is_counted_and_tried_again(service: LaptopService, watch: Watch) -> None:
    watch.until("large: start given up", lambda status: starts_failed(status, LARGE) >= 1)
    said = service.neve("group", "show", LARGE)
    assert "failed, the next try is in" in said or "one is being tried now" in said, said
    assert "no heartbeat within 150 s" in said, said
    assert not committed(service, DOCUMENTS)
    service.cluster.mend_group(LARGE)
    watch.note("large: mended")
    watch.until_at_rest(DOCUMENTS)
    DOCUMENTS.check_rows(service)
    assert len(committed(service, DOCUMENTS)) >= DOCUMENTS.tablets
    assert {each.group for each in committed(service, DOCUMENTS)} == {LARGE}


def everything_goes_when_nothing_is_left(service: LaptopService, watch: Watch) -> None:
    status = watch.until("no compactor", lambda status: not status.compactors)
    assert (status.failed, status.quarantined) == (0, 0)
    for group in (SMALL, LARGE):
        service.cluster.wait_for(
            lambda group=group: not pods_of(service, group), f"none of {group}"
        )
        assert service.cluster.replicas(group) == 0
    assert service.cluster.autoscaler_starts() == 1
