"""Marks by folder, and the switch that rewrites golden conversations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.datadriven import Answer, converse

TESTS = Path(__file__).parent
LEVELS = ("unit", "property", "contract", "sim", "integration", "e2e", "tidy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write the answers of golden conversations instead of comparing them",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test with the folder it lives in."""
    for item in items:
        level = item.path.relative_to(TESTS).parts[0]
        if level in LEVELS:
            item.add_marker(level)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, Answer], None]:
    """Hold a golden conversation: `golden(path, answer)`."""
    rewrite: bool = request.config.getoption("--rewrite")

    def hold(path: Path, answer: Answer) -> None:
        converse(path, answer, rewrite=rewrite)

    return hold
