"""What the JVMs of a Spark application are started with."""

from __future__ import annotations

import os
from pathlib import Path

from compactor.spark.application import (
    APP_MASTER_OPTIONS,
    DRIVER_OPTIONS,
    QUICK_COMPILER,
    crash_folder,
    spark_configs,
)
from compactor.spark.driver_protocol import DriverSettings, EngineKind


def test_every_jvm_reports_its_crash_beside_the_log_and_dumps_no_memory(tmp_path: Path) -> None:
    configs = spark_configs(DriverSettings(name="c1", log_file=str(tmp_path / "spark-c1.log")))
    options = [value for name, value in configs.items() if name.endswith("xtraJavaOptions")]
    assert len(options) == 3, "driver, app master, executor"
    for option in options:
        assert f"-XX:ErrorFile={tmp_path}/hs_err_pid%p.log" in option
        assert "-XX:-CreateCoredumpOnCrash" in option


def test_only_jvms_that_run_no_tasks_do_without_the_optimising_compiler() -> None:
    configs = spark_configs(DriverSettings(name="c1"))
    quick = {name for name, value in configs.items() if QUICK_COMPILER in value.split()}
    assert quick == {DRIVER_OPTIONS, APP_MASTER_OPTIONS}
    # The driver of an engine without executors runs the tasks itself.
    configs = spark_configs(DriverSettings(name="c1", engine=EngineKind.LOCAL))
    assert QUICK_COMPILER not in configs[DRIVER_OPTIONS]


def test_without_a_log_reports_go_where_temporary_files_are() -> None:
    assert crash_folder(DriverSettings(name="c1")) == Path(os.environ.get("TMPDIR", "/tmp"))
