"""What planning makes of the requests that it is told of."""

import pytest

from common.model.group import Service
from common.model.job import Job, Kind
from common.model.table import Table
from common.model.tablet import Bounds, Selection, Tablet
from common.spi.planner import RequestFacts
from coordinator.core.planning import plan_tablet
from coordinator.plugins.planners.ratio import RatioPlanner
from tests.support.planning import TABLET, files_of

pytestmark = pytest.mark.unit
TABLE = Table(id="t1", name="events", location="file:///x", schema=())


def user_jobs(requests: dict[str, RequestFacts] | None) -> list[Job]:
    selection = Selection(request="r1", files=("a", "b"), since_s=1.0)
    tablet = Tablet(
        id=TABLET,
        bounds=Bounds(None, TABLET.end),
        files=files_of(dict.fromkeys("abcdefgh", 10)),
        selection=selection,
    )
    planners = {"ratio": RatioPlanner()}
    services = {"default": Service()}
    plan = plan_tablet(tablet, TABLE, services, planners, 2.0, requests=requests)
    assert plan.jobs[0].inputs == tuple("cdefgh")
    assert requests is None or "r1" in requests or plan.left["a"] == "held by r1"
    return [job for job in plan.jobs if job.kind is Kind.USER]


def test_a_boost_is_added_to_the_priority() -> None:
    (plain,) = user_jobs(None)
    (boosted,) = user_jobs({"r1": RequestFacts(request="r1", boost=500)})
    assert boosted.priority == plain.priority + 500
    assert boosted.id == plain.id


def test_a_request_that_is_not_active_gets_no_jobs() -> None:
    assert user_jobs({}) == []
