"""Settings: file under environment under flags, and everything unknown refused by name."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from common.config import SECTIONS, Flag, load_settings, secret_of, setting_rows
from common.errors import ConfigError
from common.model.group import Group
from common.settings import (
    CompactorCount,
    CompactorSettings,
    GatewaySettings,
    GroupSettings,
    LogSettings,
    Settings,
)

pytestmark = pytest.mark.unit


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "neve.toml"
    path.write_text(text, "utf-8")
    return path


def test_without_file_and_environment_the_defaults_hold() -> None:
    assert load_settings(environ={}) == Settings()


def test_catalogs_have_properties_of_any_name(tmp_path: Path) -> None:
    text = "[catalogs.prod]\ntype = 'sql'\nuri = 'sqlite:////x'\ns3.region = 'eu'\necho = false\n"
    flags = ["catalogs.prod.s3.endpoint=http://s3", "catalogs.second.type=glue"]
    settings = load_settings(written(tmp_path, text), environ={}, flags=flags)
    assert settings.catalogs == {
        "prod": {
            "type": "sql",
            "uri": "sqlite:////x",
            "s3.region": "eu",
            "echo": "false",
            "s3.endpoint": "http://s3",
        },
        "second": {"type": "glue"},
    }
    assert settings.sources["catalogs.second.type"] == "flag --set catalogs.second.type"
    with pytest.raises(ConfigError, match="PYICEBERG_CATALOG__PROD__CREDENTIAL"):
        load_settings(environ={"NEVE_CATALOGS_PROD_TYPE": "sql"})


def test_flags_beat_the_environment_and_that_beats_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "[compactor]\nslots = 3\nengine = 'local'\n[gateway]\nport = 1\n")
    environ = {"NEVE_COMPACTOR_SLOTS": "4", "NEVE_GATEWAY_PORT": "2", "NEVE_URL": "http://x"}
    settings = load_settings(path, environ=environ, flags=["gateway.port=3"])
    assert (settings.compactor.engine, settings.compactor.slots, settings.gateway.port) == (
        "local",
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
        ("[store]\nurl = 5", r"store.url is \(a secret\), expected a text"),
        (
            "[coordinator]\ngroup_limit_bytes_s = '1K'",
            "coordinator.group_limit_bytes_s is 1.0 KiB, expected 0 .none. or at least 64",
        ),
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
        ("[catalogs.p]\nuri = 'x'", "catalogs.p.type is '', expected one of sql, rest, glue"),
        ("[catalogs.p]\ntype = 'hive'", "type hive is not supported: its clients replace a table"),
        ("[catalogs.p]\ntype = 'sql'\npy-io-impl = 'a.b'", "py-io-impl is not allowed"),
        ("[catalogs.P]\ntype = 'sql'", "catalog name 'P' must be a DNS label"),
        ("[catalogs.p]\ntoken = 'x'", "catalogs.p.token is a secret; expected it in the file"),
        ("[catalogs.p]\ns3.secret-access-key = 'x'", "s3.secret-access-key is a secret"),
        ("[catalogs.p]\nuri = 'postgresql://me:pw@db/x'", "catalogs.p.uri is a secret"),
        ("[catalogs.p]\ntype = ['sql']", "catalogs.p.type is .*expected a text"),
        ("[compactor]\nslots = 0", "compactor.slots is 0, expected 1 to 1000"),
        (
            "[compactor]\nengine = 'yarn'",
            "compactor.engine is 'yarn', expected one of raydp, local",
        ),
        ("[compactor]\nexecutor_memory = '10m'", "executor_memory is 10m, expected at least 450"),
        ("[compactor]\ntask_memory = 'much'", "task_memory 'much' is not a size"),
        (
            "[compactor]\ntask_memory = '768m'\ntask_memory_max = '400m'",
            "compactor.task_memory_max is 400m, expected 0",
        ),
        ("[compactor]\ntask_memory = '100m'", "task_memory is 100m, expected auto or at least 300"),
        ("[compactor]\ntask_memory_max = 'automatic'", "'automatic' is not a size"),
        ("[compactor]\nbeat_interval_s = 20", "silence_max_s is 30 s, expected at least two heart"),
        ("[coordinator]\nbackoff_max_s = 1", "backoff_max_s is 1 s, expected at least coord"),
        (
            "[coordinator]\ngarbage_grace_s = 0",
            "garbage_grace_s is 0 s, expected at least 65 s: coordinator.generation_interval_s",
        ),
        (
            "[coordinator]\ngarbage_grace_s = 1\ngeneration_interval_s = 0.8",
            "garbage_grace_s is 1 s, expected at least 5.8 s: .*lower those to shorten the grace",
        ),
        ("[coordinator]\ngeneration_interval_s = 0", "expected 0.5 s to 3600 s"),
        ("[coordinator]\ntick_s = 0", "tick_s is 0 s, expected 0.001 s to 60 s"),
        ("[gateway]\nport = 99999", "gateway.port is 99999, expected 0 to 65535"),
        ("[gateway]\ntoken = 5", r"gateway.token is \(a secret\), expected a text"),
        ("[groups.Big]", "group name 'Big' must be a DNS label"),
        ("[groups.big]\nslotz = 1", "groups.big.slotz is unknown; did you mean 'slots'"),
        ("[groups.big]\nslots = 0", "groups.big.slots is 0, expected 1 to 1000"),
        ("[groups.big]\ncompactors = -1", "groups.big.compactors is -1, expected at least 0"),
        ("[groups.big]\ncompactors = { min = 2, max = 1 }", "compactors 2 to 1 are not possible"),
        (
            "[groups.big]\ncompactors = { min = 2 }",
            "groups.big.compactors is .*expected a number or",
        ),
        (
            "[compactor]\ntask_memory = '768m'\n[groups.big]\ntask_memory_max = '400m'",
            "groups.big.task_memory_max is 400m.*compactor.",
        ),
        ("[groups.big.slots]\nx = 1", "groups.big.slots.*expected a whole number"),
        ("groups = 3", "groups is not what"),
        ("dispatcher = 3", "dispatcher is 3, expected a text"),
        ("[services.a]\noptions = 3", "services.a.options is 3, expected a table"),
        ("[services.a]\ngroups = 'x'", "services.a.groups is 'x', expected a list such as"),
        ("[nonsense]", "section 'nonsense' is unknown"),
    ],
)
def test_a_bad_file_is_refused_and_the_value_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as refused:
        load_settings(written(tmp_path, text), environ={})
    assert "neve.toml" in str(refused.value), "the source is not named"


EVERY = [
    f"{section}.{entry.name}"
    for section in ("store", "coordinator", "compactor", "gateway", "control", "groups.default")
    for entry in fields(SECTIONS.get(section, GroupSettings))
]


@pytest.mark.parametrize("written", ["9" * 10_000, "²", "9" * 10_000 + "s", "-" + "9" * 10_000])
def test_a_number_that_no_setting_has_is_refused_in_a_few_words(written: str) -> None:
    """In flags and the environment numbers are texts."""
    for name in EVERY:
        variable = f"NEVE_{name.replace('.', '_').upper()}"
        for flags, environ in (([f"{name}={written}"], {}), ([], {variable: written})):
            assert len(refusal(flags, environ)) < 1_000, name


def refusal(flags: list[str], environ: dict[str, str]) -> str:
    """Return why settings are refused; empty: they are taken."""
    try:
        load_settings(environ=environ, flags=flags)
    except ConfigError as refused:
        return str(refused)
    return ""


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


def test_each_value_carries_its_source(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "dispatcher = 'simple'\n[compactor]\nslots = 3\n[gateway]\ntoken = 'file'\n"
        "[services.default]\noptions = { ratio = 2.0 }\n[groups.default]\ncompactors = 2\n",
    )
    environ = {"NEVE_COMPACTOR_SLOTS": "4", "NEVE_GATEWAY_TOKEN": "environment"}
    settings = load_settings(path, environ=environ, flags=["gateway.token=flag"])
    assert settings.gateway.token == "flag"
    assert settings.sources == {
        "dispatcher": f"file {path}",
        "compactor.slots": "environment variable NEVE_COMPACTOR_SLOTS",
        "gateway.token": "flag --set gateway.token",
        "services.default.options.ratio": f"file {path}",
        "groups.default.compactors": f"file {path}",
    }
    assert settings.is_given("compactor.slots")
    assert not settings.is_given("compactor.engine")


def test_groups_stand_in_the_place_of_what_holds_for_all(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "[compactor]\nslots = 3\n[groups.small]\nslots = 5\ncores = 1\nmemory = '512m'\n"
        "[groups.large]\ncompactors = { min = 0, max = 20 }\nexecutors = 2\ntask_memory = '1g'\n",
    )
    settings = load_settings(path, environ={})
    small, large = settings.compactor_of("small"), settings.compactor_of("large")
    assert (small.slots, small.executor_cores, small.executor_memory) == (5, 1, "512m")
    assert (small.executors, small.task_memory) == (1, "auto")
    assert (large.slots, large.executors, large.task_memory) == (3, 2, "1g")
    assert settings.compactor_of("elsewhere") == settings.compactor
    assert list(settings.compactor_names()) == [("small", "small-1")]
    assert settings.served_groups() == {"default": 0, "small": 1, "large": 20}


def test_a_wrong_window_of_a_group_stops_the_start() -> None:
    flags = ["groups.default.windows=0 22 * * * for 8h in Mars"]
    with pytest.raises(ConfigError, match=r"setting groups\.windows: time zone 'Mars' is unknown"):
        load_settings(environ={}, flags=flags)


def test_every_setting_of_a_group_reaches_its_compactors() -> None:
    words = {
        "compactors": {"min": 1, "max": 1},
        "urgent_slots": 1,
        "fair_band": 3,
        "strict_shares": True,
        **dict.fromkeys(("slots", "executors", "cores"), 3),
        **dict.fromkeys(("memory", "driver_memory", "task_memory"), "1234m"),
        "task_memory_max": "2345m",
        **dict.fromkeys(("resource", "executor_resource"), "neve_group"),
        "windows": "0 22 * * * for 8h",
        **dict.fromkeys(("window_input_bytes", "window_cost_s"), 60),
        "window_exempt": "requests",
    }
    assert words.keys() == {entry.name for entry in fields(GroupSettings)}
    usual = CompactorSettings()
    for name, value in words.items():
        # Those say how many there are, where, and what the coordinator hands out.
        others = ("compactors", "resource", "urgent_slots", "fair_band", "strict_shares")
        if name not in others and not name.startswith("window"):
            assert GroupSettings(**{name: value}).applied_to(usual) != usual, name  # type: ignore[arg-type]  # by name


def test_without_named_groups_there_is_a_default_group(tmp_path: Path) -> None:
    settings = load_settings(environ={})
    assert list(settings.compactor_names()) == [("default", "default-1")]
    assert settings.only_group("--slots") == "default"
    path = written(tmp_path, "[groups.a]\n[groups.b]\n")
    with pytest.raises(ConfigError, match=r"--slots needs a group.*a, b"):
        load_settings(path, environ={}).only_group("--slots")


def test_the_environment_reaches_groups_services_and_the_dispatcher() -> None:
    environ = {
        "NEVE_DISPATCHER": "other",
        "NEVE_GROUPS_LARGE_FILES_TASK_MEMORY": "1g",
        "NEVE_GROUPS_LARGE_FILES_COMPACTORS": "{ min = 1, max = 3 }",
        "NEVE_SERVICES_DEFAULT_PLANNER": "small-files",
        "NEVE_SERVICES_DEFAULT_OPTIONS_SMALL_BYTES": "5",
        "NEVE_SERVICES_DEFAULT_GROUPS": "[{ group = 'large-files' }]",
    }
    settings = load_settings(environ=environ)
    assert settings.dispatcher == "other"
    assert settings.groups["large-files"].task_memory == "1g"
    assert str(settings.groups["large-files"].compactors) == "1 to 3"
    service = settings.services["default"]
    assert (service.planner, service.options) == ("small-files", {"small_bytes": 5})
    assert service.groups == (Group(name="large-files"),)


@pytest.mark.parametrize(
    ("variable", "named"),
    [
        ("NEVE_COMPACTER_SLOTS", "NEVE_COMPACTER_SLOTS: section 'compacter'.*'compactor'"),
        ("NEVE_COMPACTOR_SLOTZ", "NEVE_COMPACTOR_SLOTZ: setting compactor.slotz.*'slots'"),
        ("NEVE_GROUPS_LARGE", "NEVE_GROUPS_LARGE names no setting, expected NEVE_GROUPS_<NAME>_"),
        ("NEVE_SERVICES_A_PLANER", "NEVE_SERVICES_A_PLANER names no setting"),
        (
            "NEVE_GATEWAY_PORT",
            "NEVE_GATEWAY_PORT: setting gateway.port is 'x', expected a whole number",
        ),
        ("NEVE_SLOTS", "NEVE_SLOTS: section 'slots' is unknown"),
    ],
)
def test_a_variable_that_means_nothing_is_named(variable: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load_settings(environ={variable: "x"})


def test_flags_reach_options_and_groups() -> None:
    flags = [
        "services.default.options.names=a,b",
        "services.default.options.ratio=2.5",
        Flag("groups.default.slots", "7", "--slots"),
    ]
    settings = load_settings(environ={}, flags=flags)
    assert settings.services["default"].options == {"names": "a,b", "ratio": 2.5}
    assert settings.sources["groups.default.slots"] == "flag --slots"


def test_values_that_contradict_each_other_are_named_with_their_sources() -> None:
    environ = {"NEVE_COMPACTOR_BEAT_INTERVAL_S": "5s"}
    with pytest.raises(
        ConfigError,
        match=r"silence_max_s is from flag --set coordinator.silence_max_s"
        r", compactor.beat_interval_s is from environment variable",
    ):
        load_settings(environ=environ, flags=["coordinator.silence_max_s=8"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: CompactorSettings(slots=0),
        lambda: CompactorSettings(executor_memory="1m"),
        lambda: GatewaySettings(port=70_000),
        lambda: GroupSettings(cores=0),
        lambda: CompactorCount(min=1, max=0),
        lambda: LogSettings(file_bytes_max=0),
    ],
)
def test_a_value_that_breaks_its_rule_cannot_be_made(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        make()


def test_every_setting_says_what_it_is_for() -> None:
    rows = list(setting_rows())
    assert rows
    assert all(row.doc.endswith(".") for row in rows)


def test_a_list_of_texts_comes_from_file_or_environment(tmp_path: Path) -> None:
    file = tmp_path / "neve.toml"
    file.write_text('[gateway]\nlocations = ["/data", "s3://lake/a,b"]\n')
    assert load_settings(file, environ={}).gateway.locations == ("/data", "s3://lake/a,b")
    environ = {"NEVE_GATEWAY_LOCATIONS": "/data, s3://lake,"}
    assert load_settings(environ=environ).gateway.locations == ("/data", "s3://lake")
    for wrong in ("[1]", "7", "{}"):
        file.write_text(f"[gateway]\nlocations = {wrong}\n")
        with pytest.raises(ConfigError, match=r"gateway\.locations .* expected a list of texts"):
            load_settings(file, environ={})


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False), ("'yes'", True)])
def test_a_flag_is_true_or_false_wherever_it_comes_from(
    text: str, value: bool, tmp_path: Path
) -> None:
    path = written(tmp_path, f"[gateway]\ninsecure = {text}\n")
    assert load_settings(path, environ={}).gateway.insecure is value
    text = text.strip("'")
    assert load_settings(environ={"NEVE_GATEWAY_INSECURE": text}).gateway.insecure is value
    assert load_settings(environ={}, flags=[f"gateway.insecure={text}"]).gateway.insecure is value


@pytest.mark.parametrize("text", ["ja", "1", "", "1.0"])
def test_a_flag_that_is_something_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"gateway\.insecure .* expected true or false"):
        load_settings(environ={"NEVE_GATEWAY_INSECURE": text})


def test_a_secret_is_given_once(tmp_path: Path) -> None:
    environ = {"NEVE_GATEWAY_TOKEN": "t", "NEVE_GATEWAY_TOKEN_FILE": "/run/t"}
    with pytest.raises(ConfigError, match=r"gateway.token and gateway.token_file are both given"):
        load_settings(environ=environ)
    file = tmp_path / "url"
    with pytest.raises(ConfigError, match=r"setting store.url_file: .* cannot be read: No such"):
        secret_of("store.url", "", str(file))
    file.write_text("\n")
    with pytest.raises(ConfigError, match=r"setting store.url_file: .* is empty"):
        secret_of("store.url", "", str(file))
    file.write_text("redis://:p@h\n")
    assert secret_of("store.url", "redis://other", str(file)) == "redis://:p@h"
    assert secret_of("store.url", "redis://other", "") == "redis://other"


@pytest.mark.parametrize("name", ["compactor.slots", "groups.default.slots", "store.tries_max"])
@pytest.mark.parametrize("text", ["²", "9" * 5000, "9" * 1_000_000], ids=["²", "long", "longer"])
def test_a_text_that_is_hardly_a_number_is_refused_in_a_sentence(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"setting {name} is '.*, expected a whole num") as raised:
        load_settings(environ={}, flags=[f"{name}={text}"])
    assert len(str(raised.value)) < 300


def test_huge_values_are_refused_by_their_beginning(tmp_path: Path) -> None:
    """Digits of base 16 are not bounded by Python."""
    huge = "0x" + "f" * 10_000
    for line, sentence in (
        (f"[compactor]\nslots = {huge}", "is a number of too many digits, expected a whole number"),
        (f"[coordinator]\ntick_s = {huge}", "a number of too many digits is not a duration"),
        (f"[coordinator]\nageing_per_s = {huge}", "number of too many digits, expected a number"),
        (
            f"[groups.big]\ncompactors = {huge}",
            "number of too many digits, expected a whole number",
        ),
        (f"[gateway]\nlocations = [{'1,' * 100_000}]", "expected a list of texts"),
        ("[store]\ntries_max = nan", "is nan, expected a whole number"),
    ):
        with pytest.raises(ConfigError, match=sentence) as raised:
            load_settings(written(tmp_path, line), environ={})
        assert len(str(raised.value)) < 400
    with pytest.raises(ConfigError, match=r"compactors is '9999.*, expected a number or"):
        load_settings(environ={"NEVE_GROUPS_BIG_COMPACTORS": "9" * 5000})
