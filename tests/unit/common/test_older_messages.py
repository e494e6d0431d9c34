"""Messages between this release and an older one, which lacks fields that this one has added."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import pickle
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import pytest

from common import wire
from common.settings import Settings
from neve.api.messages import readable_across_releases, restore_fields
from tests.support import wire_examples
from tests.support.older_release import older_release
from tests.support.older_store import recorded_facts
from tests.support.wire_examples import example, hints_of, messages, plain, read, written

NEW_OF_JOBS = ("action", "cuts_at_s", "output_rows_max", "expected_bytes", "expected_s")
NEW_FIELDS = {
    "CoordinatorStatus": {
        *("backlogs", "triggers", "tables_unscanned", "quarantines", "windows", "queued_tables"),
        *("durability", "overlapping", "buffers_refused", "buffered"),
        "scopes.foreground_bytes",
    },
    "TakeRequest": {"actions"},
    "Heartbeat": {
        *("ready", "start_problem", "task_memory", "edition", "attempts.written_bytes", "metrics"),
        "actions",
    },
    "AttemptProgress": {"written_bytes"},
    "CompactorStatus": {"ready", "start_problem", "task_memory", "edition", "problems"},
    "Assignment": {
        *("trace", "table.settings.planner", "table.settings.planner_options"),
        *("table.triggered_at_s", "table.triggered_by", "table.settings.triggers"),
        *("table.settings.trigger_interval_s", "table.settings.trigger_spread_s"),
        *("table.settings.maintenance_priority", "table.settings.workload_points"),
        *("table.settings.gain_points", "table.settings.backlog_mode"),
        *("table.settings.analysis_share", "table.settings.analysis_columns"),
        *("table.settings.keep_free_bytes", "table.settings.directory_guard"),
        *("table.settings.readers", "table.settings.log_segment_bytes"),
        *("table.settings.keep_deleted_rows", "table.settings.show_expired_rows"),
        *("table.settings.shadow_planner", "table.settings.shadow_planner_options"),
        *("table.settings.windows", "table.settings.window_input_bytes"),
        *("table.settings.window_cost_s", "table.settings.window_exempt"),
        "table.settings.publish",
        *("table.settings.lake_maintenance", "table.settings.lake_maintenance_interval_s"),
        *("table.settings.lake_maintenance_files", "table.settings.lake_orphan_age_s"),
        "table.settings.lake_manifests_min",
        *("table.calls_since_s", "table.filling", "table.incomplete", "table.lake"),
        *(f"job.{name}" for name in NEW_OF_JOBS),
        *("analyzed", "tablet_version", "inputs.measured_at_s", "inputs.measured_version"),
    },
    "QueuedJob": {"paused", "after", *(f"job.{name}" for name in NEW_OF_JOBS)},
    "AttemptReport": {"trace"},
    "RunningAttempt": {"files", "progress.written_bytes"},
    "Explanation": {"inputs"},
    "GroupStatus": {
        *("queued_input_bytes", "running_left_bytes", "committed_bytes", "deferred", "scaling"),
        *("full_s", "overloaded", "problems"),
    },
}
"""What the older release does not know of the messages that it has."""
NEW_SETTINGS = {
    *("store.url_file", "coordinator.generation_interval_s", "gateway.token_file"),
    *("gateway.shared_folders", "access.caller_request_bytes_max", "access.audit_reads"),
    *("access.oidc_life_max_s", "coordinator.maintenance_slots"),
    *("control.foreground_shares", "gateway.compactor_hour_price", "gateway.currency"),
    *("store.append_fsync", "gateway.public_url", "access.session_max_s"),
    *("access.oidc_client_id", "access.oidc_client_secret_file", "access.oidc_scopes"),
}
"""Settings that the recorded release does not know."""
NEW_SECTIONS = {"ingest", "notify", "catalog", "catalogs"}
NEW_OF_GROUPS = {
    *("groups.default.fair_band", "groups.default.strict_shares", "groups.default.windows"),
    *("groups.default.window_input_bytes", "groups.default.window_cost_s"),
    "groups.default.window_exempt",
}
RENAMED = {"Explanation": {"table_name": "table"}}
"""Fields that have another name now; pickles have places and no names."""
NEW_MESSAGES = {
    *("ScalingDecision", "GroupScaling", "TableTrigger", "TabletTrigger", "TriggerReport"),
    *("MaintenanceOperation", "TableMaintenance", "TabletRates", "TableBacklog"),
    *("SeriesQuery", "RecordedLine", "RecordedSeries", "OwedTablet", "Quarantine"),
    *("ControlStatus", "ClassControl", "VolumeUse", "BufferedTable"),
    *("Condition", "RequestEnds", "Notices"),
}


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return older_release(tmp_path_factory.mktemp("older"))


def run_older(older: Path, verb: str, given: object = None) -> Any:
    """Run the program of the examples with the older release."""
    ended = subprocess.run(
        # Not isolated, but without the program's own folder: its modules are called like others.
        [sys.executable, "-P", wire_examples.__file__, verb],
        env=os.environ | {"PYTHONPATH": str(older)},
        cwd=older,
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def call_messages() -> set[str]:
    """Return the messages between a compactor and the coordinator."""
    calls = [call for name, call in vars(wire.CompactorCalls).items() if not name.startswith("_")]
    hints = [hint for call in calls for hint in wire_examples.hints_of(call).values()]
    every = {
        getattr(get_arg, "__name__", "") for hint in hints for get_arg in (hint, *get_args(hint))
    }
    return every & set(messages())


def missing(found: Any, sent: Any, path: str = "") -> set[str]:
    """Return the fields of `sent` that `found` does not have; the others are alike."""
    if isinstance(sent, dict) and isinstance(found, dict):
        deeper = [missing(found[k], sent[k], f"{path}.{k}") for k in sent.keys() & found.keys()]
        return {f"{path}.{each}".lstrip(".") for each in sent.keys() - found.keys()}.union(*deeper)
    if isinstance(sent, list) and isinstance(found, list):
        assert len(found) == len(sent), (path, found, sent)
        return set().union(*(missing(*each, path) for each in zip(found, sent, strict=True)))
    assert found == sent, (path, found, sent)
    return set()


def test_what_an_older_release_sends_gets_defaults_for_what_it_lacks(older: Path) -> None:
    sent = run_older(older, "write")
    assert sent.keys() == messages().keys() - NEW_MESSAGES

    for name, message in sent.items():
        for old, new in RENAMED.get(name, {}).items():
            message["plain"][new] = message["plain"].pop(old)
        value = read(message["pickle"])
        added = missing(message["plain"], plain(value))
        assert missing(plain(value), message["plain"]) == set(), name
        assert added == NEW_FIELDS.get(name, set()) | nested(name), name
        for field in dataclasses.fields(value):
            if field.name in added:
                assert getattr(value, field.name) == field.default, (name, field.name)


def nested(name: str) -> set[str]:
    """Return the new fields of messages within a message."""
    if name != "CoordinatorStatus":
        return set()
    groups = {f"groups.{each}" for each in NEW_FIELDS["GroupStatus"]}
    return groups | {f"compactors.{each}" for each in NEW_FIELDS["CompactorStatus"]}


def test_an_older_release_reads_what_compactors_and_coordinator_say(older: Path) -> None:
    names = call_messages()
    assert names == {"TakeRequest", "Assignment", "Heartbeat", "HeartbeatReply", "AttemptReport"}
    sent = {name: each for name, each in written().items() if name in names}

    found = run_older(older, "read", {name: each["pickle"] for name, each in sent.items()})

    for name, message in sent.items():
        assert missing(found[name], message["plain"]) == NEW_FIELDS.get(name, set()), name


def test_settings_that_the_release_before_has_sent_are_read() -> None:
    recorded = recorded_facts()["settings"]
    settings = pickle.loads(base64.b64decode(recorded["pickle"]))

    found = json.loads(json.dumps(asdict(settings), default=str))

    assert missing(recorded["values"], found) == NEW_SETTINGS | NEW_SECTIONS | NEW_OF_GROUPS
    new = {name: getattr(getattr(settings, section), name) for section, name in named()}
    assert new == {name: getattr(getattr(Settings(), section), name) for section, name in named()}
    for section in NEW_SECTIONS:
        assert getattr(settings, section) == getattr(Settings(), section)


def named() -> list[tuple[str, ...]]:
    """Return section and name of each new setting."""
    return [tuple(name.split(".")) for name in sorted(NEW_SETTINGS)]


def test_the_release_before_reads_the_settings_that_it_has() -> None:
    # It reads values in the order of its fields and drops the others.
    for section, values in recorded_facts()["settings"]["values"].items():
        present = asdict(Settings())[section]
        if section != "sources" and isinstance(present, dict):
            assert list(present)[: len(values)] == list(values), section


def test_every_value_in_a_message_can_be_read_across_releases() -> None:
    seen: set[type] = set()

    def look(hint: Any) -> None:
        for part in get_args(hint):
            look(part)
        if dataclasses.is_dataclass(hint) and isinstance(hint, type) and hint not in seen:
            seen.add(hint)
            for each in hints_of(hint).values():
                look(each)

    for kind in messages().values():
        look(kind)
    assert wire.Assignment in seen
    assert len(seen) > len(messages())
    assert [each for each in seen if vars(each).get("__setstate__") is not restore_fields] == []


def test_a_message_of_this_release_is_read_as_it_was() -> None:
    for kind in messages().values():
        value = example(kind)
        assert plain(pickle.loads(pickle.dumps(value))) == plain(value)


def test_what_has_no_default_must_be_in_the_message() -> None:
    value = object.__new__(wire.TakeRequest)

    with pytest.raises(TypeError, match="TakeRequest of another release has no group"):
        restore_fields(value, ["take-1", "c-1", "incarnation-1"])


def test_a_default_that_is_made_anew_is_not_shared() -> None:
    @readable_across_releases
    @dataclasses.dataclass(frozen=True, slots=True)
    class Told:
        names: list[str] = dataclasses.field(default_factory=list)

    one, other = object.__new__(Told), object.__new__(Told)
    restore_fields(one, [])
    restore_fields(other, [["a", "b"], "dropped"])
    assert one.names == []
    assert other.names == ["a", "b"]
    assert one.names is not Told().names
