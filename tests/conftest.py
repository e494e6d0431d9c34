"""Marks, order and workers by folder, and the switch that rewrites golden conversations."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from httpx._transports import default as http_transports
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.support.datadriven import Answer, converse
from tests.support.installed import SESSION_VARIABLE

TESTS = Path(__file__).parent
LEVELS = ("unit", "property", "contract", "sim", "integration", "e2e", "tidy")
ORDER = (
    *("chaos", "e2e", "integration", "k8s"),
    *("unit", "tidy"),
    *("fuzz", "sim", "property", "contract"),
)
"""Folders from the first to the last. Workers come from both ends, and a run waits for the file
that is taken last. So the files that take least are in the middle."""
LONGEST_FILES = (
    *("e2e/service", "e2e/bare", "e2e/test_supervisor.py"),
    *("e2e/test_settings_file.py", "e2e/test_tutorial.py", "e2e/sentinels"),
    "e2e/test_demo.py",
    *("integration/test_spark_engine.py", "integration/test_local_stack.py"),
)
"""Files, and folders that share a stack, of more than a minute of processor time: they come first.

`docs/development.md` has the figures.
"""
HEAVY_MAX = 3
"""So many workers at the most begin with the longest files: a stack takes up to 4 GB."""

STACKS = "tests/e2e/"
"""The files of each folder below it share a stack, whose start takes longer than any of them."""
SPARK_SESSION = "tests.support.spark_session import"
"""Files that import it share a session of Spark, which each worker would start for itself."""


class ByFileAndStack(LoadFileScheduling):
    """Whole files to each worker, and all that share a stack or a session of Spark to the same.

    The last worker, and each beyond `HEAVY_MAX`, takes files from the end, which use the processor
    while the others wait for stacks. So one stack fewer runs than there are workers.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        heavy = max(1, min(HEAVY_MAX, len(self.nodes) - 1))
        if self.nodes.index(node) >= heavy:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        folder = f"{file.rpartition('/')[0]}/"
        if folder.startswith(STACKS) and folder != STACKS:
            return folder
        return SPARK_SESSION if uses_spark_session(file) else file


@cache
def uses_spark_session(file: str) -> bool:
    """Return whether a file of tests opens the session of Spark that its process shares."""
    return SPARK_SESSION in (TESTS.parent / file).read_text("utf-8")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFileAndStack | None:
    """Give whole files to workers where `--dist loadfile` asks for it."""
    return ByFileAndStack(config, log) if config.getoption("dist") == "loadfile" else None


IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
if IS_WORKER:
    # After all that libraries do at the end. The worker has reported its tests; to take them apart,
    # one by one, takes seconds.
    atexit.register(os._exit, 0)


def make_session_folder() -> Path | None:
    """Give this test session a folder and a home of its own; None in a worker, which inherits both.

    Libraries read the home: with a token in `~/.ray`, Ray's clusters would refuse each other.
    """
    if IS_WORKER:
        return None
    folder = Path(tempfile.mkdtemp(prefix="neve-tests-"))
    # What was downloaded already serves the tests as well.
    os.environ.setdefault("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        del os.environ[name]
    home = folder / "home"
    home.mkdir()
    os.environ |= {"HOME": str(home), SESSION_VARIABLE: str(folder)}
    return folder


SESSION_FOLDER = make_session_folder()
"""Made before any test module is imported: some libraries look up the home at once."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write the answers of golden conversations instead of comparing them",
    )


# How fast examples are drawn depends on the machine, and says nothing of the code.
settings.register_profile(
    "shared-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared-machine")


# Each client of httpx reads all certificate authorities, 30 ms of processor time, also if it speaks
# to http:// alone. Clients of one test process share what they have read.
http_transports.create_ssl_context = cache(http_transports.create_ssl_context)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Have no garbage looked for among 10,000 tests, neither while they are found nor later."""
    gc.disable()
    try:
        import_from_own_part_on(session.config)
        yield
    finally:
        gc.enable()
        gc.freeze()


def import_from_own_part_on(config: pytest.Config) -> None:
    """Import the test modules of whole folders, in each worker another part of them first.

    In a new checkout pytest rewrites the assertions of each module, and stores the result. This way
    each worker rewrites a part, and finds what the others have stored.
    """
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None:
        return
    number, count = int(worker["workerid"].removeprefix("gw")), int(worker["workercount"])
    paths = sorted(path for arg in config.args for path in Path(arg).rglob("test_*.py"))
    begin = len(paths) * number // count
    for path in paths[begin:] + paths[:begin]:
        if not path.with_name("__init__.py").exists():  # Pytest would import it again.
            module = path.resolve().relative_to(TESTS.parent).with_suffix("")
            with suppress(Exception, pytest.skip.Exception):  # Pytest reports it.
                importlib.import_module(".".join(module.parts))


def pytest_unconfigure() -> None:
    """Let libraries find at the end of the process that nothing of theirs is left."""
    if not IS_WORKER:
        gc.unfreeze()
    if SESSION_FOLDER is not None:
        shutil.rmtree(SESSION_FOLDER, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test with the folder it lives in, and put long ones first.

    Within its package a test that is marked `last` comes after the others.
    """
    packages: dict[Path, int] = {}
    for item in items:
        if folder_of(item) in LEVELS:
            item.add_marker(folder_of(item))
        packages.setdefault(item.path.parent, len(packages))

    def place(item: pytest.Item) -> tuple[int, int, int, bool]:
        is_last = item.get_closest_marker("last") is not None
        return length_rank(item.path), rank_of(item), packages[item.path.parent], is_last

    items.sort(key=place)


@cache
def length_rank(path: Path) -> int:
    """Return the place of a file among the longest ones; all others come after them."""
    name = path.relative_to(TESTS).as_posix()
    ranks = (rank for rank, long in enumerate(LONGEST_FILES) if name.startswith(long))
    return next(ranks, len(LONGEST_FILES))


def folder_of(item: pytest.Item) -> str:
    return _folder_of(item.path)


@cache
def _folder_of(path: Path) -> str:
    return path.relative_to(TESTS).parts[0]


def rank_of(item: pytest.Item) -> int:
    """Return the place of a test's folder in the order; others come last."""
    folder = folder_of(item)
    return ORDER.index(folder) if folder in ORDER else len(ORDER)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, Answer], None]:
    """Hold a golden conversation: `golden(path, answer)`."""
    rewrite: bool = request.config.getoption("--rewrite")

    def hold(path: Path, answer: Answer) -> None:
        converse(path, answer, rewrite=rewrite)

    return hold
