"""One message when a condition begins, one when it has ended, whatever happens in between."""

from __future__ import annotations

import json

import pytest

from common.control_settings import CONDITIONS, NotifySettings
from common.errors import SettingError
from common.wire import OTHERS, Condition, RequestEnds, bounded_conditions
from neve.gateway.notify.messages import STANDING_MAX, Conditions, Message

pytestmark = pytest.mark.unit

RULES = NotifySettings(gather_s=10.0, calm_s=60.0, backlog_after_s=600.0, silent_after_s=30.0)
OF_COORDINATOR = tuple(kind for kind in CONDITIONS if not kind.endswith("-silent"))


def quarantined(count: int, table: str = "trips") -> Condition:
    return Condition(kind="quarantined", subject=table, count=count, text="it failed 5 times")


def titles(drafts: list[Message]) -> list[str]:
    return [draft.title for draft in drafts]


def begun(conditions: Conditions, *there: Condition) -> list[str]:
    """Let conditions begin at 0; return the titles of their messages."""
    assert conditions.look(there, (), 0.0) == []
    return titles(conditions.look(there, (), 10.0))


def test_ten_thousand_quarantined_tablets_are_one_message_with_their_number() -> None:
    conditions = Conditions(RULES)
    counts = [10_000 * second // 10 for second in range(11)]
    drafts = [
        draft
        for second, count in enumerate(counts)
        for draft in conditions.look([quarantined(count)], (), float(second))
    ]
    (draft,) = drafts
    assert draft.title == "10,000 tablets of table trips in quarantine"
    assert (draft.kind, draft.state, draft.subject, draft.count) == (
        "quarantined", "begun", "trips", 10_000,
    )  # fmt: skip
    assert draft.text.endswith("since 1970-01-01 00:00:00 UTC; it failed 5 times")
    for second in range(11, 500):
        assert conditions.look([quarantined(10_000 + second)], (), float(second)) == []


def test_one_message_says_that_it_is_over_with_the_largest_number() -> None:
    conditions = Conditions(RULES)
    begun(conditions, quarantined(3))
    assert conditions.look([quarantined(7)], (), 20.0) == []
    assert conditions.look([], (), 79.0) == []
    (draft,) = conditions.look([], (), 80.0)
    assert draft.title == "back to normal: 7 tablets of table trips in quarantine"
    assert (draft.state, draft.count, draft.since_s) == ("ended", 7, 0.0)
    assert draft.text.startswith("over after 20.0 s, at most: 7 tablets")
    assert conditions.look([], (), 1000.0) == []
    assert conditions.look([quarantined(1)], (), 2000.0) == []
    assert len(conditions.look([quarantined(1)], (), 2010.0)) == 1, "it has begun again"


def test_what_comes_and_goes_is_one_condition() -> None:
    conditions = Conditions(RULES)
    begun(conditions, quarantined(1))
    for second in range(20, 600, 20):
        there = [quarantined(1)] if second % 40 else []
        assert conditions.look(there, (), float(second)) == []


def test_what_is_over_before_its_message_is_none() -> None:
    conditions = Conditions(RULES)
    conditions.look([quarantined(1)], (), 0.0)
    assert conditions.look([], (), 5.0) == []
    assert conditions.look([quarantined(1)], (), 12.0) == [], "it has begun anew"


def test_each_table_and_group_has_a_message_of_its_own() -> None:
    there = (
        quarantined(1),
        quarantined(2, "rides"),
        Condition(kind="shed", subject="small", count=4),
        Condition(kind="read-only", subject="trips", text="the store is older"),
    )
    assert begun(Conditions(RULES), *there) == [
        "1 tablet of table trips in quarantine",
        "2 tablets of table rides in quarantine",
        "queue of group small is full, 4 tablets deferred",
        "table trips is read-only",
    ]


def test_a_backlog_and_a_silence_have_times_of_their_own() -> None:
    conditions = Conditions(RULES)
    backlog = Condition(kind="backlog", subject="trips", count=3 * 1024**3)
    store = Condition(kind="store-silent", subject="")
    catalog = Condition(kind="catalog-silent", subject="sales", text="no route to host")
    messages = {
        second: titles(drafts)
        for second in range(700)
        if (drafts := conditions.look([backlog, store, catalog], (), float(second)))
    }
    assert messages == {
        30: ["the metadata store does not answer"],
        300: ["the log of table sales does not answer"],
        600: ["backlog of table trips is 3.0 GiB"],
    }


def test_what_a_silent_coordinator_knows_neither_begins_nor_ends() -> None:
    conditions = Conditions(RULES)
    begun(conditions, quarantined(1))
    silent = Condition(kind="coordinator-silent", subject="")
    messages = [
        title
        for second in range(11, 400)
        for title in titles(conditions.look([silent], OF_COORDINATOR, float(second)))
    ]
    assert messages == ["the coordinator does not answer"]
    assert conditions.look([], (), 400.0) == []
    assert conditions.look([quarantined(1)], (), 458.0) == []
    assert titles(conditions.look([quarantined(1)], (), 470.0)) == [
        "back to normal: the coordinator does not answer"
    ]


def test_conditions_that_are_not_chosen_are_left_out() -> None:
    rules = NotifySettings(conditions=("shed",))
    assert begun(Conditions(rules), quarantined(1), Condition(kind="shed", subject="g")) == [
        "queue of group g is full, 1 tablet deferred"
    ]


def ends(state: str, count: int, table: str = "trips", cause: str = "") -> RequestEnds:
    return RequestEnds(table=table, state=state, count=count, request=f"r{count}", cause=cause)


def test_requests_that_ended_since_the_last_look_are_one_message_per_table_and_outcome() -> None:
    conditions = Conditions(RULES)
    assert conditions.requests_ended("c1", [ends("done", 9)], 0.0) == [], "before the first look"
    drafts = conditions.requests_ended(
        "c1",
        [ends("done", 10), ends("failed", 2, cause="no such column"), ends("cancelled", 5)],
        1.0,
    )
    assert [(draft.kind, draft.title, draft.text) for draft in drafts] == [
        ("request-done", "1 request of table trips done", "request r10"),
        (
            "request-failed",
            "2 requests of table trips failed",
            "the last one is r2: no such column",
        ),
    ]
    assert conditions.requests_ended("c1", [ends("done", 10), ends("failed", 2)], 2.0) == []
    (draft,) = conditions.requests_ended("c2", [ends("done", 1)], 3.0)
    assert draft.count == 1, "a new coordinator counts from 0"


def test_a_restart_repeats_nothing_and_ends_what_is_over() -> None:
    before = Conditions(RULES)
    begun(before, quarantined(5), quarantined(1, "rides"))
    before.look([quarantined(5), quarantined(1, "rides"), quarantined(1, "new")], (), 11.0)
    before.requests_ended("c1", [ends("done", 9)], 11.0)
    document = json.loads(json.dumps(before.document()))

    after = Conditions(RULES)
    after.restore(document, 100.0)
    assert after.look([quarantined(5)], (), 101.0) == []
    assert after.requests_ended("c1", [ends("done", 9)], 101.0) == []
    assert len(after.requests_ended("c1", [ends("done", 11)], 102.0)) == 1
    assert titles(after.look([quarantined(5)], (), 160.0)) == [
        "back to normal: 1 tablet of table rides in quarantine"
    ]
    assert after.document()["standing"][0]["since_s"] == 0.0


def test_conditions_are_bounded() -> None:
    conditions = Conditions(RULES)
    many = [quarantined(1, f"t{number}") for number in range(STANDING_MAX + 5)]
    assert len(begun(conditions, *many)) == STANDING_MAX
    bounded = bounded_conditions([*many, Condition(kind="shed", subject="g")], 3)
    assert [(one.subject, one.count) for one in bounded] == [
        ("t0", 1), ("t1", 1), ("t10", 1), (OTHERS, STANDING_MAX + 2), ("g", 1),
    ]  # fmt: skip
    assert begun(Conditions(RULES), bounded[3]) == [
        f"{STANDING_MAX + 2:,} tablets of further tables in quarantine"
    ]


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"webhook_url": "https://hooks.test/x"}, "notify.webhook_key_file"),
        ({"webhook_url_file": "/secret"}, "notify.webhook_key_file"),
        ({"email_to": ("a@x.test",), "smtp_host": "mail.test"}, "notify.email_from"),
        ({"email_to": ("a@x.test",), "email_from": "n@x.test"}, "notify.smtp_host"),
        ({"smtp_user": "neve"}, "notify.smtp_password_file"),
        ({"smtp_tls": "none"}, "notify.smtp_tls"),
    ],
)
def test_targets_that_lack_something_are_refused(settings: dict[str, object], missing: str) -> None:
    with pytest.raises(SettingError) as refused:
        NotifySettings(**settings)  # type: ignore[arg-type]  # by name
    assert refused.value.names == (missing,)
