"""One Spark session on this machine for all tests of a process."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

from neve.local.machine import find_java


@cache
def local_session() -> Any:
    """Return the session, opened at its first use."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("JAVA_HOME", str(find_java(os.environ).home))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("neve-tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        # It lives for minutes: what the optimising compiler makes faster does not pay for it.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.sql.shuffle.partitions": "2",
        "spark.executorEnv.PYTHONPATH": os.getcwd(),
        # As in production: workers are forks of a process that has loaded all libraries, the same
        # one for Spark SQL.
        "spark.python.daemon.module": "compactor.spark.task_daemon",
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session
