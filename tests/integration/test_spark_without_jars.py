"""Spark starts and works without the jars that the image leaves out; pods do so in a long test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from neve.local.machine import find_java
from tests.support.manifests import ROOT
from tests.support.patience import SERVICE_S

pytestmark = [pytest.mark.slow]

WORK = """
import sys
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .getOrCreate()
)
assert spark.sparkContext.parallelize(range(1000), 2).map(lambda n: n + 1).sum() == 500_500
spark.range(10).write.parquet(sys.argv[1])
assert spark.read.parquet(sys.argv[1]).selectExpr("sum(id)").first()[0] == 45
"""


def test_spark_works_without_the_jars_that_the_image_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    for part in Path(pyspark.__path__[0]).iterdir():
        if part.name != "jars":
            (tmp_path / "pyspark" / part.name).symlink_to(part)
    left_out = (ROOT / "k8s" / "image" / "unused-jars.txt").read_text("utf-8").splitlines()
    jars = Path(pyspark.__path__[0]) / "jars"
    shutil.copytree(
        jars, tmp_path / "pyspark" / "jars", ignore=lambda *_: left_out, copy_function=os.symlink
    )

    ran = subprocess.run(
        [sys.executable, "-c", WORK, str(tmp_path / "written")],
        cwd=tmp_path,
        env={
            **os.environ,
            "JAVA_HOME": str(find_java(os.environ).home),
            "PYTHONPATH": str(tmp_path),
            "SPARK_HOME": str(tmp_path / "pyspark"),
            "PYSPARK_PYTHON": sys.executable,
        },
        capture_output=True,
        text=True,
        timeout=SERVICE_S,
        check=False,
    )

    assert len(list((tmp_path / "pyspark" / "jars").iterdir())) == 158
    assert ran.returncode == 0, ran.stderr
