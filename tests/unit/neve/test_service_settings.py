"""What `neve up` and `neve config check` read, refuse, remark and show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from common.errors import ConfigError
from neve.local import LocalStack, StackOptions
from neve.local.stack_folder import StackFolder
from neve.service_settings import (
    HIDDEN,
    ShownSetting,
    load_service_settings,
    setting_differences,
    setting_remarks,
    settings_from_document,
    settings_to_document,
    shown_settings,
)
from tests.support.shell import Shell

pytestmark = pytest.mark.unit


def shown_by_name(*flags: str) -> dict[str, ShownSetting]:
    settings = load_service_settings(environ={}, flags=flags)
    return {shown_setting.name: shown_setting for shown_setting in shown_settings(settings)}


def test_a_list_is_the_same_after_it_was_saved() -> None:
    settings = load_service_settings(environ={}, flags=["gateway.locations=/data, s3://lake"])
    shown = shown_settings(settings)
    saved = json.loads(json.dumps(settings_to_document(shown)))
    assert setting_differences(settings_from_document(saved), shown) == []
    assert {each.name: each.text for each in shown}["gateway.locations"] == "/data, s3://lake"


WRONG = [
    ("compactor.slots=0", "compactor.slots is 0, expected 1 to 1000"),
    ("compactor.slotz=1", "did you mean 'slots'"),
    ("gateway.port=99999", "gateway.port is 99999, expected 0 to 65535"),
    ("dispatcher=nope", "'nope' is not installed; installed: simple .dispatcher is from flag"),
    ("services.default.planner=nope", "'nope' is not installed; installed: .*ratio,.*flag --set"),
    ("services.default.options.ratoi=2", "option 'ratoi' is unknown; did you mean 'ratio'"),
    ("services.default.options.ratio=0", "ratio is 0, expected at least 1 .services.default.opt"),
    ("services.default.groups=[]", "no groups"),
    ("groups.default.executors=0", "groups.default.executors is 0, expected 1 to 64"),
    (
        f"coordinator.running_max={'9' * 10_000}",
        r"running_max is '9+\.\.\.9+', expected a whole number",
    ),
    (f"coordinator.queue_bytes_max={'9' * 10_000}", r"queue_bytes_max '9+\.\.\.9+' is not a size"),
    ("coordinator.queue_bytes_max=²", "queue_bytes_max '²' is not a size"),
    ("store.url=nonsense", r"store.url is \(a secret\), expected redis://… or rediss://… or unix"),
    ("store.url=redis://h:99999999/0", "store.url is .a secret., expected a port of 1 to 65535"),
    ("trace.endpoint=http://h:0/v1", "trace.endpoint is 'http://h:0/v1', expected a port of 1 to"),
    ("access.oidc_issuer=https://:443", "oidc_issuer is 'https://:443', expected the name or ad"),
    ("access.oidc_keys_url=ftp://h/x", "keys_url is 'ftp://h/x', expected https://… or http://…"),
    (
        f"groups.default.compactors={'9' * 10_000}",
        r"compactors is '9+\.\.\.9+', expected a number or",
    ),
]


@pytest.mark.parametrize(("flag", "named"), WRONG)
def test_up_and_check_refuse_the_same_before_anything_is_started(
    tmp_path: Path, flag: str, named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        load_service_settings(environ={}, flags=[flag])
    shell = Shell(tmp_path / "home")
    checked = shell.run("config", "check", "--set", flag, code=2).output
    assert shell.run("up", "--set", flag, code=2).output == checked
    assert not (tmp_path / "home").exists()


def test_a_segment_size_that_does_not_divide_the_capacity_is_refused(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "home")
    words = ["planner=log-segment", "options.segment=12GB", "options.capacity=160GB"]
    flags = [part for word in words for part in ("--set", f"services.default.{word}")]
    refused = shell.run("config", "check", *flags, code=2).output
    assert "8589934592 (8.0 GiB), 10737418240 (10.0 GiB)" in " ".join(refused.split())
    flags[3] = flags[3].replace("12GB", "16GB")
    shell.run("config", "check", *flags)


@pytest.mark.parametrize("planner", ["ratio", "size-tiered", "leveled", "time-window"])
def test_a_service_chooses_how_backlogs_are_measured(tmp_path: Path, planner: str) -> None:
    shell = Shell(tmp_path / "home")
    words = [f"planner={planner}", "options.backlog_mode=seed"]
    flags = [part for word in words for part in ("--set", f"services.default.{word}")]
    shell.run("config", "check", *flags)
    flags[3] = flags[3].replace("seed", "sed")
    shell.run("config", "check", *flags, code=2, says="backlog_mode is 'sed', expected one of")


def test_a_stack_made_by_a_program_is_checked_as_well(tmp_path: Path) -> None:
    settings = load_service_settings(environ={}).services
    wrong = {name: type(each)(name=name, planner="nope") for name, each in settings.items()}
    options = StackOptions(settings=type(load_service_settings(environ={}))(services=wrong))
    with pytest.raises(ConfigError, match="'nope' is not installed"):
        LocalStack.start(home=tmp_path / "home", options=options)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (["--port", "99999"], "flag --port: setting gateway.port is 99999, expected 0 to 65535"),
        (["--slots", "0"], "flag --slots: setting groups.default.slots is 0, expected 1 to 1000"),
        (["--compactors", "5000"], "flag --compactors: setting groups.default.compactors"),
        (["--config", "/none.toml"], "/none.toml cannot be read"),
        (
            ["--set", "groups.a.slots=1", "--set", "groups.b.slots=1", "--slots", "2"],
            "--slots needs a group",
        ),
    ],
)
def test_short_options_are_refused_by_name(tmp_path: Path, option: list[str], says: str) -> None:
    Shell(tmp_path / "home").run("up", *option, code=2, says=says)


def test_a_variable_that_means_nothing_stops_the_start(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "home", NEVE_COMPACTER_SLOTS="3")
    shell.run("up", code=2, says="NEVE_COMPACTER_SLOTS: section 'compacter' is unknown")


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    home = tmp_path / "file" / "home"
    Shell(home).run("up", code=1, says="cannot be written: Not a directory; choose another")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--stack", "No/Name"], 2, "stack name 'No/Name' is invalid"),
        (["--allow", "/etc"], 2, "setting gateway.locations: '/etc' is in or around /etc"),
        (["--set", "gateway.host=0.0.0.0"], 2, "gateway.host is '0.0.0.0', which others reach"),
        (["--set", "store.url=nonsense"], 2, "store.url is (a secret), expected redis://"),
        (["--set", "store.url_file=/none"], 2, "setting store.url_file: /none cannot be read"),
        (["--set", "store.url=redis://127.0.0.1:1/0"], 4, "setting store.url: "),
    ],
)
def test_a_start_ends_with_the_code_of_its_cause(
    tmp_path: Path, words: list[str], code: int, says: str
) -> None:
    Shell(tmp_path / "home").run("up", *words, code=code, says=says)


def test_a_start_while_another_one_is_under_way_is_refused(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    with StackFolder.of(tmp_path, "default", {}).locked():
        shell.run("up", code=3, says="is being started or stopped by another process")


def test_short_options_mean_the_only_group() -> None:
    settings = load_service_settings(
        environ={}, flags=["groups.big.cores=1"], compactors=3, slots=4, port=0
    )
    assert list(settings.compactor_names()) == [
        ("big", "big-1"),
        ("big", "big-2"),
        ("big", "big-3"),
    ]
    assert (settings.compactor_of("big").slots, settings.gateway.port) == (4, 0)
    assert settings.sources["groups.big.compactors"] == "flag --compactors"


def test_a_port_is_of_no_group() -> None:
    settings = load_service_settings(
        environ={}, flags=["groups.a.cores=1", "groups.b.cores=1"], port=1234
    )
    assert settings.gateway.port == 1234


def test_odd_settings_are_remarked_and_allowed() -> None:
    assert setting_remarks(load_service_settings(environ={})) == []
    said = setting_remarks(load_service_settings(environ={}, flags=["groups.big.compactors=1"]))
    assert [each.partition(":")[0] for each in said] == [
        "group big has compactors, but no service names it",
        "group default of service default has no compactor",
    ]
    scaled = load_service_settings(environ={}, flags=["groups.default.compactors={min=0, max=3}"])
    assert setting_remarks(scaled) == []
    none = load_service_settings(environ={}, flags=["groups.default.compactors=0"])
    assert setting_remarks(none)[0].startswith("group default of service default has no compactor")


def test_a_setting_is_shown_with_value_source_and_what_a_change_needs() -> None:
    shown = shown_by_name("compactor.slots=5", "coordinator.queue_bytes_max=1MB")
    assert shown["compactor.slots"] == ShownSetting(
        name="compactor.slots",
        value=5,
        text="5",
        source="flag --set compactor.slots",
        change="restart",
    )
    queue = shown["coordinator.queue_bytes_max"]
    assert (queue.value, queue.text) == (1024**2, "1.0 MiB")
    assert shown["trace.sample_ratio"].text == "1", "a ratio, no seconds"
    assert shown["coordinator.tick_s"].source == "default"
    limit = shown["coordinator.group_limit_bytes_s"]
    assert limit.change == "restart, or now: neve group limit"


def test_groups_services_and_options_are_shown() -> None:
    shown = shown_by_name(
        "groups.big.slots=3",
        'services.default.groups=[{ group = "small", max_size = "1MB" }, { group = "big" }]',
        "services.default.options.ratio=2.5",
    )
    assert shown["groups.big.compactors"].text == "1"
    assert shown["groups.big.slots"].text == "3"
    assert "groups.big.cores" not in shown
    assert shown["services.default.groups"].text == "small below 1.0 MiB, big"
    assert shown["services.default.options.ratio"].text == "2.5"


def test_secrets_are_not_shown() -> None:
    shown = shown_by_name("gateway.token=hush", "store.url=redis://:hush@h/0")
    assert shown["gateway.token"].value == shown["store.url"].text == HIDDEN
    assert "hush" not in str(shown)


def test_two_services_are_compared_setting_by_setting() -> None:
    running = list(shown_by_name("compactor.slots=5", "groups.default.cores=1").values())
    wanted = list(shown_by_name("gateway.port=1").values())
    assert setting_differences(running, running) == []
    assert setting_differences(settings_from_document(settings_to_document(running)), wanted) == [
        "compactor.slots = 2 (default), running with 5",
        "gateway.port = 1 (flag --set gateway.port), running with 8642",
        "groups.default.cores is not asked for",
    ]
