"""Where the tables of a stack may be, if nobody says it: convenient, and nothing secret."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

import pytest

from common.errors import ConfigError, RefusedError
from common.settings import GatewaySettings
from neve.gateway.table_locations import locations_of
from neve.local.options import with_locations
from neve.local.stack_folder import StackFolder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StackFolder:
    for name in ("home/.ssh", "work", "temporary", "data"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    return StackFolder.of(tmp_path / "home/.neve", "default", {})


@pytest.fixture
def environ(tmp_path: Path) -> Mapping[str, str]:
    return {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "temporary")}


def private(folder: StackFolder) -> Path:
    """Return the folder of what lives as long as a stack."""
    return folder.path.parents[2] / "temporary/neve-01234567"


def admitted(settings: GatewaySettings, place: Path | str) -> bool:
    try:
        return bool(locations_of(settings).admitted(str(place)))
    except RefusedError:
        return False


def test_home_here_and_temporary_files_are_where_tables_may_be(
    folder: StackFolder, environ: Mapping[str, str], tmp_path: Path
) -> None:
    folder.make()
    made = with_locations(GatewaySettings(), folder, private(folder), (), environ)
    for place in ("home/t", "work/t", "temporary/t"):
        assert admitted(made, tmp_path / place)
    assert admitted(made, folder.tables / "t")
    secret = (folder.path, folder.redis, folder.logs, folder.token_file, folder.path / "x")
    short_lived = (private(folder), private(folder) / "ray/t")
    for path in (
        *secret,
        *short_lived,
        tmp_path / "home/.ssh",
        tmp_path / "home",
        tmp_path / "data/t",
    ):
        assert not admitted(made, path), path
    assert not admitted(made, "s3://lake/t")


def test_the_own_folders_of_a_user_are_no_tables_themselves(
    tmp_path: Path,
    folder: StackFolder,
    environ: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = StackFolder.of(tmp_path / "stacks", "default", {})
    elsewhere.make()
    made = with_locations(GatewaySettings(), elsewhere, private(folder), (), environ)
    for name in ("home", "work", "temporary"):
        assert not admitted(made, tmp_path / name)
        assert admitted(made, tmp_path / name / "t")
    named = (str(tmp_path), str(tmp_path / "home"))
    made = with_locations(GatewaySettings(), elsewhere, private(folder), named, environ)
    assert admitted(made, tmp_path / "data")
    for place in (tmp_path, tmp_path / "home", tmp_path / "home/.ssh/t"):
        assert not admitted(made, place), "also if it is named"


def test_a_hidden_working_folder_has_to_be_named(
    tmp_path: Path,
    folder: StackFolder,
    environ: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder.make()
    hidden = tmp_path / "home/.config/x"
    hidden.mkdir(parents=True)
    monkeypatch.chdir(hidden)
    made = with_locations(GatewaySettings(), folder, private(folder), (), environ)
    assert not admitted(made, hidden / "t")
    made = with_locations(GatewaySettings(), folder, private(folder), (".",), environ)
    assert admitted(made, hidden / "t")
    assert not admitted(made, hidden)


def test_allowed_locations_are_remembered(
    folder: StackFolder,
    environ: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder.make()
    with_locations(GatewaySettings(), folder, private(folder), ("../data", "s3://lake"), environ)
    assert stat.S_IMODE(folder.locations_file.stat().st_mode) == 0o600
    monkeypatch.chdir("/")
    again = with_locations(GatewaySettings(), folder, private(folder), (), environ)
    for place in (tmp_path / "data/t", tmp_path / "work/t", "s3://lake/t"):
        assert admitted(again, place)
    assert "/" not in again.locations, "the working directory is no root of everything"


def test_a_setting_is_all_there_is(
    folder: StackFolder, environ: Mapping[str, str], tmp_path: Path
) -> None:
    folder.make()
    given = GatewaySettings(locations=(str(tmp_path / "data"),))
    made = with_locations(given, folder, private(folder), ("s3://lake",), environ)
    assert admitted(made, tmp_path / "data/t")
    assert admitted(made, "s3://lake/t")
    assert admitted(made, folder.tables / "t")
    for place in ("home/t", "work/t", "temporary/t"):
        assert not admitted(made, tmp_path / place)


@pytest.mark.parametrize("place", ["/etc", "/proc/self/root", "s3://k:secret@b", "ftp://x"])
def test_a_wrong_location_ends_the_start(
    folder: StackFolder, environ: Mapping[str, str], place: str
) -> None:
    folder.make()
    with pytest.raises(ConfigError, match=r"setting gateway\.locations") as caught:
        with_locations(GatewaySettings(), folder, private(folder), (place,), environ)
    assert "secret" not in str(caught.value)
    assert not folder.locations_file.exists(), "it is not remembered"


def test_a_root_as_home_is_not_everything(folder: StackFolder) -> None:
    folder.make()
    made = with_locations(
        GatewaySettings(), folder, private(folder), (), {"HOME": "/", "TMPDIR": "/etc/x"}
    )
    assert "/" not in made.locations
    assert "/etc/x" not in made.locations
