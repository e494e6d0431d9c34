"""What a process loads: heavy libraries only where they are used."""

import ast
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path

import pytest

from neve import api

SERVER = ("fastapi", "msgpack", "pandas", "polars", "pyspark", "ray", "raydp", "redis")
STARTED = ("compactor", "coordinator", "fastapi", "numpy", "pyarrow", "redis")
"""What actors load, but not the process that starts them."""
HEAVY = ("fastapi", "pandas", "pyspark", "ray", "raydp", "uvicorn")
PROGRAM = """
import sys
for module in sys.argv[1].split(","):
    __import__(module)
print(",".join(name for name in sys.argv[2].split(",") if name in sys.modules))
"""


MODULES_OF_READERS = """
import neve.gateway.server
from common.readers.pool import _ProcessReaders
print(",".join(_ProcessReaders.modules))
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
CHECK_SETTINGS = """
    from common.settings import Settings
    from neve.service_settings import check_service, load_service_settings
    check_service(Settings())
"""
OF_VERB = """
import sys
from neve.cli import main
try:
    main()
finally:
    sys.stderr.write(" ".join(sys.modules))
"""
STATUS = api.Status(
    coordinator="c-1",
    started_s=0.0,
    now_s=7.0,
    groups=(),
    compactors=(),
    tables=0,
    tablets_known=0,
    committed=0,
    failed=0,
    released=0,
    conflicts=0,
    quarantined=0,
)
OF_TYPER = {"annotated_doc", "rich", "shellingham", "typer"}
OF_ACTORS = {"cryptography", "hiredis", "numpy", "pyarrow", "ray", "redis"}
if sys.version_info < (3, 11, 3):
    OF_ACTORS |= {"async_timeout"}  # Needed by the client of Redis, such as on Debian 12.
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
        ("neve.cli.app,neve.local.stack,neve.gateway.table_locations", (*HEAVY, *STARTED)),
        ("compactor.spark.engine", (*HEAVY, "polars", "pyarrow")),
        ("compactor.spark.child", ("fastapi", "pandas", "ray", "raydp")),
        # Loaded by Spark's daemon, which forks: Polars would start threads before.
        ("compactor.rewrite.spark_tasks", ("pandas", "polars", "ray", "raydp")),
        ("common.coordinator_proxy,neve.gateway.actor,neve.local.actors", STARTED),
        ("common.readers.fork_server", (*HEAVY, "asyncio", "polars", "redis")),
    ],
)
def test_a_process_does_not_load(modules: str, unloaded: tuple[str, ...]) -> None:
    assert output_of(PROGRAM, modules, ",".join(unloaded)) == ""


def test_the_readers_of_the_gateway_do_not_load_its_server() -> None:
    modules = output_of(MODULES_OF_READERS)
    assert "common.parquet.file_inspection" in modules
    assert output_of(PROGRAM, modules, ",".join(HEAVY)) == ""


def output_of(program: str, *arguments: str) -> str:
    """Return what a program prints in a process of its own."""
    command = [sys.executable, "-P", "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("program", "allowed"),
    [
        (RUN.format(["--version"]), {"neve"}),
        (RUN.format(["status", "--url", "http://127.0.0.1:1"]), OF_TYPER),
        (RUN.format(["table", "describe", "users", "--url", "http://127.0.0.1:1"]), OF_TYPER),
        ("import neve.client.connect", set()),
        ("from neve import Client; Client('https://service')", OF_HTTPX),
        (CHECK_SETTINGS, set()),
    ],
    ids=["version", "status", "describe", "client", "tls", "settings"],
)
def test_an_entry_point_loads_only(program: str, allowed: set[str]) -> None:
    loaded = loaded_libraries(program)
    assert loaded <= {*allowed, "neve", "common"}, loaded


def test_status_loads_only_the_classes_that_it_shows() -> None:
    with served(answer=asdict(STATUS)) as url:
        done = subprocess.run(
            [sys.executable, "-P", "-c", OF_VERB, "status", "--url", url],
            capture_output=True,
            text=True,
            check=True,
        )
    assert "coordinator  up for 7.0 s" in done.stdout
    loaded = {*done.stderr.split()}
    assert {name for name in loaded if name.startswith("neve.api.")} == {
        *("neve.api.compactors", "neve.api.files", "neve.api.messages"),
        *("neve.api.planning", "neve.api.service"),
    }
    assert not loaded & {"asyncio", "httpx", "common.documents", "pygments"}


def test_each_name_of_the_api_is_loaded_from_the_module_that_defines_it() -> None:
    folder = Path(api.__file__).parent
    homes = {
        name: path.stem
        for path in folder.glob("*.py")
        if path.stem not in {"__init__", "column_types", "files"}
        for name in defined_names(ast.parse(path.read_text()))
    }
    assert {*homes} == {*api._HOMES}
    for name, module in homes.items():
        assert getattr(api, name) is getattr(import_module(f"neve.api.{module}"), name)
    with pytest.raises(AttributeError):
        api.Unknown  # type: ignore[attr-defined]  # noqa: B018


def defined_names(module: ast.Module) -> Iterator[str]:
    """Yield the public names that a module defines, type variables excepted."""
    for node in module.body:
        names = []
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names = [node.name]
        elif isinstance(node, ast.Assign) and "TypeVar" not in ast.unparse(node):
            names = [ast.unparse(target) for target in node.targets]
        elif isinstance(node, ast.AnnAssign):
            names = [ast.unparse(node.target)]
        yield from (name for name in names if not name.startswith("_"))


@contextmanager
def served(answer: object) -> Iterator[str]:
    """Serve an answer to every call, at the URL that is yielded."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


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
