"""Programs outside the product end what they have started."""

from __future__ import annotations

import re

from tests.tidy.tree import name_of, python_files

STARTERS = re.compile(
    r"\b(?:LocalStack|InstalledStack)\.start\b|\brunning\(|\bRedisServer\(|\bStage\("
)
"""What starts a stack, or a server that outlives a program that is ended."""


def test_every_program_that_starts_a_service_ends_it_when_it_is_ended() -> None:
    """SIGTERM ends Python at once, without the blocks that would end what it has started."""
    mains = {
        path if "__main__" in text else path.parent / "__main__.py"
        for path in python_files("benchmarks", "tests/chaos", "tests/fuzz")
        if STARTERS.search(text := path.read_text("utf-8"))
    }

    assert len(mains) > 8
    assert not [name_of(main) for main in mains if "exit_on_sigterm()" not in main.read_text()]
