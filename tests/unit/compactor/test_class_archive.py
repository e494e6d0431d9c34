"""The archive of classes is made once for each Java, and ignored when it is not whole."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compactor.spark import class_archive
from compactor.spark.class_archive import ARCHIVES_MAX, archive_options, class_path, make_archive
from neve.local.processes import MARK_VARIABLE, processes_of_stack
from tests.support.patience import PATIENCE_S, wait_until

JAVA = """#!/bin/sh
for word in "$@"; do
    case $word in -XX:SharedArchiveFile=*) printf classes >"${word#*=}" ;; esac
done
echo dumped >>"${0%/bin/java}/runs"
"""
UNABLE = """#!/bin/sh
echo failed >>"${0%/bin/java}/runs"
exit 1
"""
SLOW = JAVA.replace("\n", '\ntouch "$0.begun"\nwhile [ -e "$0.begun" ]; do sleep 0.1; done\n', 1)
"""A Java that goes on when its mark is removed."""
FULL = f"{JAVA}exit 1\n"
"""A Java that writes a part, as on a disk that becomes full."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java that writes an archive of seven bytes."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    launch(home, JAVA)
    monkeypatch.setenv("JAVA_HOME", str(home))
    return home


def launch(home: Path, program: str) -> None:
    (home / "bin" / "java").write_text(program)
    (home / "bin" / "java").chmod(0o700)


def runs(home: Path) -> int:
    file = home / "runs"
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_a_second_attempt_finds_the_archive(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "archives"
    assert archive_options(folder) == []
    make_archive(folder)
    make_archive(folder)
    assert runs(home) == 1
    (archive,) = folder.glob("*.jsa")
    assert archive_options(folder) == [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto"]


def test_an_archive_that_was_cut_off_is_not_used(home: Path, tmp_path: Path) -> None:
    make_archive(tmp_path)
    (archive,) = tmp_path.glob("*.jsa")
    os.truncate(archive, 3)
    assert archive_options(tmp_path) == []


def test_another_java_gets_an_archive_of_its_own_and_few_are_kept(
    home: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "archives"
    for release in range(ARCHIVES_MAX + 2):
        (home / "release").write_text("7" * release)
        assert archive_options(folder) == []
        make_archive(folder)
        assert archive_options(folder)
    assert len(list(folder.glob("*.jsa"))) == ARCHIVES_MAX


@pytest.mark.parametrize("java", [UNABLE, FULL], ids=["none", "a part"])
def test_a_java_that_makes_no_whole_archive_is_asked_once(
    home: Path, tmp_path: Path, java: str
) -> None:
    launch(home, java)
    make_archive(tmp_path)
    make_archive(tmp_path)
    assert runs(home) == 1
    assert archive_options(tmp_path) == []


def test_two_processes_do_not_make_the_archive_at_once(home: Path, tmp_path: Path) -> None:
    with (tmp_path / "classes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        make_archive(tmp_path)
        assert runs(home) == 0
    make_archive(tmp_path)
    assert runs(home) == 1


def test_an_archive_is_made_though_the_stack_that_began_it_ends(home: Path, tmp_path: Path) -> None:
    launch(home, SLOW)
    begun = home / "bin" / "java.begun"
    call = "class_archive.make_in_background(Path(sys.argv[1])); time.sleep(60)"
    imports = (
        "import sys, time; from pathlib import Path; from compactor.spark import class_archive"
    )
    mark = str(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", f"{imports}; {call}", str(tmp_path)],
        env=os.environ | {MARK_VARIABLE: mark},
    ) as driver:
        wait_until(begun.exists, "a Java that runs", wait_max_s=PATIENCE_S)

        def is_alone() -> bool:
            return [process.pid for process in processes_of_stack(mark)] == [driver.pid]

        wait_until(is_alone, "a stack without the process", wait_max_s=PATIENCE_S)
        driver.kill()
    assert archive_options(tmp_path) == []
    begun.unlink()
    wait_until(lambda: bool(archive_options(tmp_path)), "the archive", wait_max_s=PATIENCE_S)
    assert runs(home) == 1


def test_a_folder_that_cannot_be_written_makes_no_error(home: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    make_archive(blocked)
    assert runs(home) == 0
    assert archive_options(blocked) == []


def test_classes_of_raydp_come_before_those_of_spark_that_they_replace() -> None:
    *raydp, spark, ray = map(Path, class_path().split(os.pathsep))
    assert raydp
    assert {(jar.parts[-3], jar.exists()) for jar in raydp} == {("raydp", True)}
    assert spark.name == "*"
    assert list(spark.parent.glob("spark-core_*.jar"))
    assert (ray.name, ray.exists()) == ("ray_dist.jar", True)


def test_the_list_has_classes_of_all_that_joins_in_a_jvm() -> None:
    names = {line.split()[0] for line in class_archive._names().decode().splitlines()}
    assert {
        "org/apache/spark/SparkContext",
        "org/apache/spark/executor/RayDPExecutor",
        "io/ray/runtime/RayNativeRuntime",
        "java/lang/Object",
        "@lambda-proxy",
    } <= names
