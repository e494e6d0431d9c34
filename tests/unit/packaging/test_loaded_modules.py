"""What a process loads: heavy libraries only where they are used."""

import subprocess
import sys

import pytest

SERVER = ("fastapi", "msgpack", "pandas", "polars", "pyspark", "ray", "raydp", "redis")
HEAVY = ("fastapi", "pandas", "pyspark", "ray", "raydp", "uvicorn")
PROGRAM = """
import sys
for module in sys.argv[1].split(","):
    __import__(module)
print(",".join(name for name in sys.argv[2].split(",") if name in sys.modules))
"""


@pytest.mark.parametrize(
    ("modules", "unloaded"),
    [
        # `neve plan`, `neve backlog` and `neve simulate --record` without any extra.
        ("neve.cli.app,neve.offline,neve.simulate.recording", SERVER),
        ("neve.local.supervisor,neve.local.stack", HEAVY),
        ("compactor.spark.engine", (*HEAVY, "polars", "pyarrow")),
        ("compactor.spark.child", ("fastapi", "pandas", "ray", "raydp")),
        ("common.readers.fork_server", (*HEAVY, "asyncio", "polars", "redis")),
    ],
)
def test_a_process_does_not_load(modules: str, unloaded: tuple[str, ...]) -> None:
    arguments = [sys.executable, "-P", "-c", PROGRAM, modules, ",".join(unloaded)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
