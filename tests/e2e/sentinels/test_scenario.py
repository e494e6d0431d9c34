"""The fifteen steps of Accumulo's scenario on real parts, each seen from outside and in order.

What is merged stands in the script of a planner, and every job waits at a gate that the
test opens; so the story is the same on every machine, however slow.
"""

from __future__ import annotations

import pytest

from neve.client.requests import Request
from tests.support.patience import SERVICE_S
from tests.support.scenario import (
    FIVE,
    HELD_BACK,
    LAST_SYSTEM,
    NEW,
    NEW_SYSTEM,
    NEXT_SYSTEM,
    OLD_SYSTEM,
    RESULTS,
    SELECTED,
    numbered,
)
from tests.support.scenario_stage import GROUP, Stage
from tests.support.stack import COMPACTORS, Service

pytestmark = [pytest.mark.slow]

USERS = tuple(("USER", inputs) for inputs in FIVE)


def test_a_user_request_goes_through_all_fifteen_steps(service: Service) -> None:
    stage = Stage(service, "scenario")
    wish = from_one_job_to_a_hold(stage)
    from_selection_to_six_jobs(stage, wish)
    from_intermediate_outputs_to_one_file(stage, wish)
    to_rest(stage)


def from_one_job_to_a_hold(stage: Stage) -> Request:
    client, table = stage.client, stage.table
    # 1. Tablet A has 200 files.
    stage.add(numbered(1, 200))
    stage.until_files(numbered(1, 200))

    # 2. A system job of F171 … F200 runs.
    client.resume(table.name)
    stage.until_running(("SYSTEM", OLD_SYSTEM))

    # 3. A request waits for it, and places a hold.
    wish = stage.ask()
    stage.until("marker", lambda: stage.part(wish).state == "waiting")
    assert stage.tablet().waiting.keys() == {wish.id}
    assert stage.tablet().selection is None

    # 4. The job completes.
    stage.open("SYSTEM", OLD_SYSTEM)
    stage.until_files(SELECTED)

    # 5. Whoever looks for work is told of the hold; nothing is queued, nothing runs.
    assert HELD_BACK <= SELECTED
    client.replan(table.name)
    waits = f"request {wish.id} waits to select files; no system job starts until then"
    stage.until("hold", lambda: stage.left() == dict.fromkeys(SELECTED, waits))
    assert not stage.queued()
    assert not stage.tablet().running
    assert stage.part(wish).state == "waiting"
    return wish


def from_selection_to_six_jobs(stage: Stage, wish: Request) -> None:
    client = stage.client
    # 6. The request selects; these files are no candidates for system jobs any more.
    client.pause_group(GROUP)
    stage.let_select()
    stage.until("selection", lambda: stage.selection() == SELECTED)
    assert not stage.tablet().waiting
    assert (stage.part(wish).state, stage.part(wish).files_left) == ("selected", 171)

    # 7. Five jobs are queued, disjoint, of all selected files; they run at the same time.
    assert sorted(name for inputs in FIVE for name in inputs) == sorted(SELECTED)
    stage.until_queued(*USERS)
    client.resume_group(GROUP)
    stage.until_running(*USERS)

    # 8. 40 files arrive, and do not join.
    client.pause_group(GROUP)
    stage.add(NEW)
    stage.until_files(SELECTED | NEW)
    assert stage.selection() == SELECTED

    # 9. A system job of some of them is queued, and runs beside the others.
    stage.until_queued(("SYSTEM", NEW_SYSTEM))
    client.resume_group(GROUP)
    stage.until_running(*USERS, ("SYSTEM", NEW_SYSTEM))
    assert stage.selection() == SELECTED


def from_intermediate_outputs_to_one_file(stage: Stage, wish: Request) -> None:
    client, last = stage.client, ("USER", RESULTS)
    # 10. The five complete; their outputs are the selection now.
    client.pause_group(GROUP)
    stage.open("USER", *FIVE)
    stage.until_files(RESULTS | NEW)
    assert stage.selection() == RESULTS
    assert stage.part(wish).state == "selected"

    # 11. A job of these outputs is queued.
    stage.until_queued(last)
    stage.until_running(("SYSTEM", NEW_SYSTEM))

    # 12. The system job completes.
    stage.open("SYSTEM", NEW_SYSTEM)
    stage.until_files(RESULTS | NEXT_SYSTEM)
    assert stage.selection() == RESULTS

    # 13. A system job of the files beside the selection is queued.
    stage.until_queued(last, ("SYSTEM", NEXT_SYSTEM))
    client.resume_group(GROUP)
    stage.until_running(last, ("SYSTEM", NEXT_SYSTEM))

    # 14. One file is left of the selection: the request is done, and there is no selection.
    stage.open(*last)
    assert wish.wait(timeout_s=SERVICE_S).state == "done"
    stage.until_files(NEXT_SYSTEM | {"F406"})
    assert stage.tablet().selection is None
    made_by = [file.request for file in client.files(stage.table.name) if file.request]
    assert made_by == [wish.id]
    stage.until_running(("SYSTEM", NEXT_SYSTEM))


def to_rest(stage: Stage) -> None:
    # 15. A system job may have any file.
    stage.open("SYSTEM", NEXT_SYSTEM, LAST_SYSTEM)
    stage.until_files(frozenset({"F407"}))

    stage.service.wait_until_at_rest(stage.table)
    committed = {30: 1, 35: 4, 31: 1, 20: 1, 21: 1, 5: 1, 2: 1}
    assert stage.ends() == {("committed", inputs): jobs for inputs, jobs in committed.items()}
    stage.table.check_rows()
    stage.until("tablet without markers", lambda: not stage.tablet().done)
    stage.service.wait_until_clean(stage.table)


def test_deaths_repeat_no_more_than_what_ran(service: Service) -> None:
    client, stage = service.client, Stage(service, "scenario")
    stage.add(SELECTED)
    wish = stage.ask()
    stage.let_select()
    stage.until("selection", lambda: stage.selection() == SELECTED)
    chosen = stage.tablet().selection

    # The coordinator dies before the first job: the selection is the same one.
    service.kill(service.actor("CoordinatorActor"))
    service.wait("answer", lambda: client.resume(stage.table.name))
    stage.until_running(*USERS)
    assert stage.tablet().selection == chosen

    # The compactor dies in the middle of the third job of five; the others are not repeated.
    stage.open("USER", *FIVE[:2])
    done = frozenset({"F401", "F402"})
    stage.until_files(SELECTED - FIVE[0] - FIVE[1] | done)
    died = set(stage.tablet().running)
    service.kill(service.compactor(COMPACTORS[0]))
    stage.until("release", lambda: not died & stage.tablet().running.keys())
    stage.until_running(*USERS[2:])
    stage.open("USER", *FIVE[2:], RESULTS)
    assert wish.wait(timeout_s=SERVICE_S).state == "done"
    stage.until_files(frozenset({"F406"}))
    ends = {("committed", 35): 4, ("committed", 31): 1, ("committed", 5): 1}
    assert stage.ends() == {**ends, ("lost", 35): 2, ("lost", 31): 1}
    stage.table.check_rows()
    service.wait_until_clean(stage.table)
