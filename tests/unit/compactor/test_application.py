"""What the JVMs of a Spark application are started with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compactor.rewrite.memory_budget import REMOTE_SETTING
from compactor.spark.application import (
    DRIVER_OPTIONS,
    QUICK_COMPILER,
    crash_folder,
    spark_configs,
    start_gateway,
)
from compactor.spark.driver_protocol import DriverSettings, EngineKind


def test_every_jvm_reports_its_crash_beside_the_log_and_dumps_no_memory(tmp_path: Path) -> None:
    configs = spark_configs(DriverSettings(name="c1", log_file=str(tmp_path / "spark-c1.log")))
    options = [value for name, value in configs.items() if name.endswith("xtraJavaOptions")]
    assert len(options) == 2, "driver, executor"
    for option in options:
        assert f"-XX:ErrorFile={tmp_path}/hs_err_pid%p.log" in option
        assert "-XX:-CreateCoredumpOnCrash" in option


def test_only_jvms_that_run_no_tasks_do_without_the_optimising_compiler() -> None:
    configs = spark_configs(DriverSettings(name="c1"))
    quick = {name for name, value in configs.items() if QUICK_COMPILER in value.split()}
    assert quick == {DRIVER_OPTIONS}
    # The driver of an engine without executors runs the tasks itself.
    configs = spark_configs(DriverSettings(name="c1", engine=EngineKind.LOCAL))
    assert QUICK_COMPILER not in configs[DRIVER_OPTIONS]


def test_a_driver_knows_whether_executors_may_be_on_other_machines() -> None:
    assert REMOTE_SETTING not in spark_configs(DriverSettings(name="c1", executors=2))
    assert REMOTE_SETTING in spark_configs(DriverSettings(name="c1", executor_resource="spark"))


def test_without_a_log_reports_go_where_temporary_files_are() -> None:
    assert crash_folder(DriverSettings(name="c1")) == Path(os.environ.get("TMPDIR", "/tmp"))


def test_a_jvm_that_ends_at_once_fails_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\necho "$@" > "${0%/bin/java}/arguments"\nexit 3\n')
    java.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RuntimeError, match="ended with code 3"):
        start_gateway({"spark.app.name": "c1"}, ["@options"], "64m")
    words = (tmp_path / "arguments").read_text().split()
    assert words[0] == "@options"
    assert {"-Xmx64m", "-Dspark.app.name=c1"} <= set(words)
    assert not list(tmp_path.glob("neve-gateway-*"))
