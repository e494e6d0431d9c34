"""Java makes and uses an archive of classes, and starts without one that does not fit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from compactor.spark import class_archive
from compactor.spark.class_archive import archive_options, class_path, make_archive
from neve.local.machine import find_java

CLASS = "org.apache.spark.SparkConf"
FROM_ARCHIVE = f"{CLASS} source: shared objects file"


def test_java_loads_classes_from_the_archive_if_it_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = find_java(os.environ)
    monkeypatch.setenv("JAVA_HOME", str(java.home))
    monkeypatch.setattr(class_archive, "_names", lambda: CLASS.replace(".", "/").encode() + b"\n")
    make_archive(tmp_path)
    options = archive_options(tmp_path)

    def loaded(path: str) -> str:
        """Return what a JVM loads whose main class is one of Spark's, which has no `main`."""
        command = [java.program, *options, "-Xlog:class+load", "-cp", path, CLASS]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "Main method not found" in done.stderr
        return done.stdout

    assert FROM_ARCHIVE in loaded(class_path())
    other = loaded(class_path().partition(os.pathsep)[2])
    assert CLASS in other
    assert FROM_ARCHIVE not in other
