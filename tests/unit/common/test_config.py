"""Settings: file under environment under flags, and everything unknown refused by name."""

from pathlib import Path

import pytest

from common.config import load_settings, setting_rows
from common.errors import ConfigError
from common.model.group import Group
from common.settings import Settings

pytestmark = pytest.mark.unit


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "neve.toml"
    path.write_text(text, "utf-8")
    return path


def test_nothing_said_gives_the_defaults() -> None:
    assert load_settings(environ={}) == Settings()


def test_flags_beat_the_environment_and_that_beats_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "[compactor]\nslots = 3\ngroup = 'big'\n[gateway]\nport = 1\n")
    environ = {"NEVE_COMPACTOR_SLOTS": "4", "NEVE_GATEWAY_PORT": "2", "NEVE_URL": "http://x"}
    settings = load_settings(path, environ=environ, flags=["gateway.port=3"])
    assert (settings.compactor.group, settings.compactor.slots, settings.gateway.port) == (
        "big",
        4,
        3,
    )


def test_the_environment_can_name_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "[store]\nconnections_max = 5\n")
    assert load_settings(environ={"NEVE_CONFIG": str(path)}).store.connections_max == 5


def test_sizes_and_durations_may_be_texts(tmp_path: Path) -> None:
    path = written(
        tmp_path, "[coordinator]\nqueue_bytes_max = '1MB'\nfull_scan_interval_s = '2m'\n"
    )
    coordinator = load_settings(path, environ={}).coordinator
    assert (coordinator.queue_bytes_max, coordinator.full_scan_interval_s) == (1024**2, 120.0)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[compactor]\nslotz = 3", "slotz.*did you mean 'slots'"),
        ("[compacter]\nslots = 3", "section 'compacter'"),
        ("[compactor]\nslots = 'many'", "compactor.slots.*'many'"),
        ("[compactor]\nslots = -1", "compactor.slots.*-1"),
        ("[compactor]\nslots = true", "compactor.slots.*True"),
        ("[store]\nurl = 5", "store.url.*5"),
        ("[coordinator]\ngroup_limit_bytes_s = '1K'", "coordinator.group_limit_bytes_s is 1024"),
        ("[coordinator]\ntick_s = 'soon'", "coordinator.tick_s.*'soon'"),
        ("services = 3", "services"),
        ("[services.a]\nplanner = 3", "services.a.planner"),
        ("[services.a]\ngroops = []", "groops.*groups"),
        ("[services.a]\ngroups = []", "no groups"),
        ("[services.a]\ngroups = [{max_size = '1M'}]", "must have a field group"),
        ("[services.a]\ngroups = [{group = 'Big'}]", "'Big'"),
        ("[services.a]\ngroups = [{group = 'x'}, {group = 'x', max_size = 5}]", "'x' is named"),
        ("[services.a]\ngroups = [{group = 'x'}, {group = 'y'}]", "no max_size"),
        ("[services.a]\ngroups = [{group = 'x', max_size = 0}]", "max_size 0"),
        ("[services.a]\n[services.b]", "'default' is used by services 'a' and 'b'"),
        ("not toml", "not TOML"),
    ],
)
def test_a_bad_file_is_refused_and_the_value_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load_settings(written(tmp_path, text), environ={})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml cannot be read"):
        load_settings(tmp_path / "absent.toml", environ={})


@pytest.mark.parametrize("flag", ["gateway.port", "port=3", "x.y=1"])
def test_a_bad_flag_is_named(flag: str) -> None:
    with pytest.raises(ConfigError, match=flag.split("=", maxsplit=1)[0].split(".")[0]):
        load_settings(environ={}, flags=[flag])


def test_groups_are_ordered_by_size_with_the_unlimited_last(tmp_path: Path) -> None:
    listed = "{group='rest'}, {group='m', max_size='2M'}, {group='s', max_size='1M'}"
    text = f"[services.a]\ngroups = [{listed}]"
    service = load_settings(written(tmp_path, text), environ={}).services["a"]
    assert service.groups == (
        Group(name="s", max_bytes=1024**2),
        Group(name="m", max_bytes=2 * 1024**2),
        Group(name="rest"),
    )


def test_every_setting_says_what_it_is_for() -> None:
    rows = list(setting_rows())
    assert rows
    assert all(row.doc.endswith(".") for row in rows)
