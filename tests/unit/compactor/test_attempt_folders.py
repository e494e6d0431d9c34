"""An attempt's folder goes with it, and those of dead drivers with the next attempt."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from compactor.rewrite.attempt_folder import attempt_folder, remove_left_folders


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_an_attempt_folder_is_removed_after_an_error_too(tmp_path: Path) -> None:
    def failing() -> None:
        with attempt_folder() as folder:
            Path(folder, "part-0.parquet").write_bytes(b"x")
            raise KeyError(folder)

    with pytest.raises(KeyError):
        failing()
    assert list(tmp_path.iterdir()) == []


def test_only_attempt_folders_of_dead_drivers_are_removed(tmp_path: Path) -> None:
    dead = dead_process()
    left = tmp_path / f"neve-attempt-{dead}-x"
    elsewhere = tmp_path / f"neve-attempt-{dead}-y"
    strange = tmp_path / "neve-attempt-of-somebody"
    for folder in (left, elsewhere, strange):
        folder.mkdir()
        (folder / "alive").touch()
    with open(elsewhere / "alive", "rb") as lock:
        # A driver that shares this disk, but not our view of processes.
        fcntl.flock(lock, fcntl.LOCK_EX)
        with attempt_folder() as own:
            found = {path.name for path in tmp_path.iterdir()}
            assert found == {elsewhere.name, strange.name, Path(own).name}
    remove_left_folders()
    assert [path.name for path in tmp_path.iterdir()] == [strange.name]
