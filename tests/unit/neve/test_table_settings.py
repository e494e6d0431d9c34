"""Settings that name a plug-in: parsed from mappings and texts, checked by the plug-in, stored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common.errors import RequestError
from common.metadata.codec.table import pack_settings, unpack_settings
from common.model.group import Service
from common.model.table import Table, TableSettings
from neve.gateway.table_settings import (
    changed_settings,
    check_table_planner,
    settings_of_new_table,
    settings_with_fixed,
)

WANTED = {"threshold": "1GB", "codec": "zstd", "codec_level": "19"}


def changed(**wanted: Any) -> TableSettings:
    return changed_settings(TableSettings(), wanted, services=["default"])


@pytest.mark.parametrize(
    "written",
    [
        {"threshold": "1GB", "codec": "zstd", "codec_level": 19},
        " threshold = 1GB, codec=zstd,codec_level=19,",
    ],
)
def test_options_are_a_mapping_or_a_text(written: object) -> None:
    settings = changed(configurer="by-size", configurer_options=written)
    assert (settings.configurer, settings.configurer_options) == ("by-size", WANTED)
    assert unpack_settings("here", pack_settings(settings)) == settings


def test_a_table_chooses_how_its_backlog_is_measured() -> None:
    settings = changed(backlog_mode="seed")
    assert settings.backlog_mode == "seed"
    assert unpack_settings("here", pack_settings(settings)) == settings
    assert changed(planner="leveled", planner_options="backlog_mode=seed").planner == "leveled"


def test_split_and_merge_sizes_of_tablets_are_parsed() -> None:
    settings = changed(split="2GB", merge="1GB")
    assert (settings.split_bytes, settings.merge_bytes) == (2 * 1024**3, 1024**3)
    assert changed(merge_bytes="1GB").split_bytes == 0
    assert changed(split_bytes=0).split_bytes == 0


@pytest.mark.parametrize("written", [["id", "user"], "id, user,", " id,user,id"])
def test_names_are_a_list_or_a_text(written: object) -> None:
    settings = changed(bloom_columns=written)
    assert settings.bloom_columns == ("id", "user")
    assert unpack_settings("here", pack_settings(settings)) == settings
    assert changed(bloom_columns="none").bloom_columns == ()


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"split_bytes": "1000"}, "split_bytes is 1000 B, expected 0 .none. or at"),
        ({"split": "1MB", "merge": "600KB"}, "merge_bytes 614400 is above half of split_bytes"),
        (
            {"maintenance_priority": "6"},
            "maintenance_priority is 6, expected -5 to 5",
        ),
        (
            {"maintenance_priority": "-5.5"},
            "maintenance_priority is '-5.5', expected a whole number",
        ),
        ({"workload_points": "-1"}, "workload_points is -1, expected 0 to 9999"),
        ({"backlog_mode": "sed"}, "backlog_mode is 'sed', expected one of seed, interesting"),
        ({"triggers": "periodic,cron"}, "triggers is periodic, cron, expected some of change, per"),
        ({"trigger_interval": "0"}, "trigger_interval_s is 0 s, expected at least 1 s"),
        ({"configurer": "by-seize"}, "setting configurer: .*'by-seize' is not installed"),
        ({"configurer": "by-size"}, "by-size lacks the option threshold"),
        ({"configurer_options": {"codec": "gzip"}}, "has codec, but configurer is not set"),
        ({"selector": "sighs"}, "setting selector: .*'sighs' is not installed"),
        ({"selector": "size"}, "selector size: give at least one of larger_than or smaller_than"),
        ({"selector_options": "min_files=2"}, "has min_files, but selector is not set"),
        ({"configurer_options": "codec"}, "is 'codec', expected options such as name=value"),
        ({"configurer_options": 7}, "is 7, expected options"),
        ({"planner": "ration"}, "setting planner: .*'ration' is not installed; installed: .*ratio"),
        ({"planner_options": "ratio=2"}, "planner_options has ratio, but planner is not set"),
        (
            {"planner": "ratio", "planner_options": "ratoi=2"},
            "setting planner_options: planner 'ratio': option 'ratoi' is unknown; did you mean 'r",
        ),
        (
            {"planner": "ratio", "planner_options": {"ratio": "0.5"}},
            "option ratio is 0.5, expected at least 1",
        ),
    ],
)
def test_a_wrong_table_setting_is_refused(wanted: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        changed(**wanted)


def test_a_table_may_have_a_planner_of_its_own() -> None:
    settings = changed(planner="ratio", planner_options="ratio=2,max_files=20")
    assert settings.planner == "ratio"
    assert settings.planner_options == {"ratio": "2", "max_files": "20"}
    assert unpack_settings("here", pack_settings(settings)) == settings


@pytest.mark.parametrize(
    ("planner", "more", "says"),
    [
        ("leveled", {}, "setting planner: planner 'leveled': needs a table with a key; choose"),
        (
            "time-window",
            {},
            "setting planner: planner 'time-window': needs a time_column, and the table",
        ),
        ("leveled", {"key": ("k",)}, None),
        ("time-window", {"time_column": "at"}, None),
        ("size-tiered", {}, None),
        ("unified", {}, None),
        ("", {}, None),
    ],
)
def test_a_planner_refuses_tables_that_it_cannot_plan(
    planner: str, more: dict[str, Any], says: str | None
) -> None:
    settings = changed(planner=planner) if planner else TableSettings()
    table = Table(id="t", name="t", location="file:///t", schema=(), settings=settings, **more)
    if says is None:
        check_table_planner(table)
        return
    with pytest.raises(RequestError, match=says):
        check_table_planner(table)


# --------------------------------------------------------------------------- Who plans a new table?


def new_table(
    *, keyed: bool, services: dict[str, Service] | None = None, **wanted: Any
) -> tuple[str, str]:
    settings, said = settings_of_new_table(
        "t", keyed=keyed, changes=wanted, services=services or {"default": Service()}
    )
    return settings.planner, said


def test_a_table_without_a_key_gets_bin_pack_and_is_told_why() -> None:
    assert new_table(keyed=False) == (
        "bin-pack",
        "planner of table t: bin-pack, since it has no key: small files are merged up to "
        "target_bytes",
    )


def test_a_keyed_table_keeps_the_planner_of_its_service() -> None:
    planner, said = new_table(keyed=True)
    assert planner == ""
    assert said.startswith("planner of table t: ratio, since it has a key")


@pytest.mark.parametrize(
    ("wanted", "planner", "said"),
    [
        ({"planner": "ratio"}, "ratio", "ratio, as its settings say"),
        ({"planner": "bin-pack"}, "bin-pack", "bin-pack, as its settings say"),
        ({"ratio": 2}, "", "ratio, since it reads the setting ratio"),
        ({"lowest_ratio": 2}, "", "ratio, since it reads the setting lowest_ratio"),
    ],
)
def test_what_its_creator_chooses_wins(wanted: dict[str, Any], planner: str, said: str) -> None:
    assert new_table(keyed=False, **wanted) == (planner, f"planner of table t: {said}")


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("default", {"options": {"ratio": 2}}, "ratio, as service default says"),
        ("default", {"planner": "theirs"}, "theirs, as service default says"),
        ("default-system", {"planner": "theirs"}, "theirs, as service default-system says"),
    ],
)
def test_what_the_operator_chooses_wins(name: str, changed: dict[str, Any], said: str) -> None:
    services = {"default": Service(), name: Service(name=name, **changed)}
    assert new_table(keyed=False, services=services) == ("", f"planner of table t: {said}")


def test_a_planner_of_the_service_fixes_the_size_of_segments_once() -> None:
    def settings(present: TableSettings, **options: object) -> TableSettings:
        services = {"default": Service(planner="log-segment", options=options)}
        return settings_with_fixed(present, {"file_limit": "20"}, services=services)

    new = settings(TableSettings(), segment="1GB", capacity="160GB")
    assert new.log_segment_bytes == 1024**3
    assert settings(new, segment="7GB", capacity="160GB") == new, "changed later"
    with pytest.raises(RequestError, match=r"option segment_bytes is 536870912 .* expected a size"):
        settings(TableSettings(), capacity="1300MB")
    other = settings_with_fixed(TableSettings(), {}, services={"default": Service()})
    assert other.log_segment_bytes == 0


def test_the_deleted_retention_of_a_planner_decides_the_settings_of_its_table() -> None:
    week_s = 7 * 86_400.0
    services = {"default": Service()}

    def changed(present: TableSettings, **changes: object) -> TableSettings:
        return settings_with_fixed(present, changes, services=services)

    options = "segment=1GB,deleted_retention_days=7"
    new = changed(TableSettings(), planner="log-segment", planner_options=options)
    assert (new.keep_deleted_rows, new.tombstone_retention_s) == (True, week_s)
    longer = changed(new, tombstone_retention="30d")
    assert longer.tombstone_retention_s == 30 * 86_400.0, "the longer one"
    for setting in ({"tombstone_retention": "1d"}, {"keep_deleted_rows": "false"}):
        with pytest.raises(RequestError, match=r"which the options of planner 'log-segment' req"):
            changed(new, **setting)
    without = changed(new, planner_options="segment=1GB")
    assert without == replace(new, planner_options={"segment": "1GB"})
    assert not changed(without, keep_deleted_rows="false").keep_deleted_rows


def test_other_services_do_not_matter() -> None:
    services = {"default": Service(), "other": Service(name="other", planner="theirs")}
    assert new_table(keyed=False, services=services)[0] == "bin-pack"


def test_windows_of_a_table_are_checked_and_stored() -> None:
    text = "0 22 * * 1-5 for 8h in Europe/Berlin; 0 12 * * sat for 1d"
    settings = changed(
        windows=text, window_input_bytes="1TB", window_cost="10h", window_exempt="requests"
    )
    assert (settings.windows, settings.window_input_bytes) == (text, 1024**4)
    assert (settings.window_cost_s, settings.window_exempt) == (36_000.0, ("requests",))
    assert unpack_settings("here", pack_settings(settings)) == settings
    assert changed(window_exempt="none").window_exempt == ()
    assert changed(windows="").windows == ""
    with pytest.raises(RequestError, match=r"^setting windows: time zone 'Mars/Base' is unknown"):
        changed(windows="0 22 * * * for 8h in Mars/Base")
    with pytest.raises(RequestError, match="expected some of requests, over-limit"):
        changed(window_exempt="everything")
