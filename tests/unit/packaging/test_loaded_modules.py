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


LIBRARIES = """
import os, sys
%s
before = set(sys.modules)
os.environ |= {"NEVE_RETRY_S": "0", "RAY_ADDRESS": ""}
try:
    %s
except SystemExit:
    pass
names = {name.partition(".")[0] for name in sys.modules.keys() - before}
names = {name for name in names - sys.stdlib_module_names if not name.startswith("_")}
sys.stderr.write(" ".join(sorted(names)))
"""
RUN = "sys.argv[1:] = {}; from neve.cli import main; main()"
OF_TYPER = {"annotated_doc", "rich", "shellingham", "typer"}
OF_ACTORS = {"cryptography", "hiredis", "numpy", "pyarrow", "ray", "redis"}
OF_RAY = {"cloudpickle"}
"""What Ray also loads where something else has installed it, such as the benchmarks."""
OF_GATEWAY = {
    *{
        "annotated_doc",
        "annotated_types",
        "anyio",
        "click",
        "fastapi",
        "httptools",
        "jinja2",
        "jwt",
        "markupsafe",
        "opentelemetry",
    },
    *{
        "prometheus_client",
        "pydantic",
        "pydantic_core",
        "starlette",
        "typing_inspection",
        "uvicorn",
    },
}
OF_HTTPX = {"anyio", "certifi", "h11", "httpcore", "httpx", "idna", "zstandard"}
"""The last one where something else has installed it."""


@pytest.mark.parametrize(
    ("modules", "unloaded"),
    [
        # `neve plan`, `neve backlog` and `neve simulate --record` without any extra.
        ("neve.cli.planning,neve.cli.simulate,neve.offline,neve.simulate.recording", SERVER),
        ("neve.cli.app,neve.cli.service", ("common.model", "common.settings")),
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


@pytest.mark.parametrize(
    ("program", "allowed"),
    [
        (RUN.format(["--version"]), {"neve"}),
        (RUN.format(["status", "--url", "http://127.0.0.1:1"]), {*OF_TYPER, *OF_HTTPX}),
        (RUN.format(["table", "describe", "users"]), {*OF_TYPER, *OF_HTTPX}),
        ("import neve.client.connect", {"httpx", "certifi", "idna", "zstandard"}),
    ],
    ids=["version", "status", "describe", "client"],
)
def test_an_entry_point_loads_only(program: str, allowed: set[str]) -> None:
    loaded = loaded_libraries(program)
    assert loaded <= {*allowed, "neve", "common"}, loaded


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("coordinator.actor", {"coordinator"}),
        ("compactor.actor", {"compactor"}),
        ("neve.gateway.actor", {"coordinator", "compactor", *OF_GATEWAY}),
    ],
)
def test_an_actor_loads_only(module: str, allowed: set[str]) -> None:
    loaded = loaded_libraries(f"import {module}", after="import ray")
    assert loaded <= {*allowed, *OF_ACTORS, *OF_RAY, "neve", "common"}, loaded


def loaded_libraries(program: str, after: str = "") -> set[str]:
    arguments = [sys.executable, "-P", "-c", LIBRARIES % (after, program)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    return {*done.stderr.splitlines()[-1].split()}
