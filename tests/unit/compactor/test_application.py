"""What a Spark application is started with, as far as it says where its remains go."""

from __future__ import annotations

import os
from pathlib import Path

from compactor.spark.application import crash_folder, spark_configs
from compactor.spark.driver_protocol import DriverSettings


def test_every_jvm_reports_its_crash_beside_the_log_and_dumps_no_memory(tmp_path: Path) -> None:
    configs = spark_configs(DriverSettings(name="c1", log_file=str(tmp_path / "spark-c1.log")))
    options = [value for name, value in configs.items() if name.endswith("xtraJavaOptions")]
    assert len(options) == 3, "driver, app master, executor"
    for each in options:
        assert f"-XX:ErrorFile={tmp_path}/hs_err_pid%p.log" in each
        assert "-XX:-CreateCoredumpOnCrash" in each


def test_without_a_log_reports_go_where_temporary_files_are() -> None:
    assert crash_folder(DriverSettings(name="c1")) == Path(os.environ.get("TMPDIR", "/tmp"))
