"""A machine that lets nobody make namespaces is told in one sentence, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kubernetes.namespaces import NamespaceError, check_namespaces


def test_no_program_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(NamespaceError, match=r"there is no `unshare`\. Run the test as root"):
        check_namespaces()


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("echo 'unshare failed: Operation not permitted' >&2; exit 1", "Operation not permitted"),
        ("exit 3", "`unshare` ended with 3"),
    ],
)
def test_no_right_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, complaint: str
) -> None:
    program = tmp_path / "unshare"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(NamespaceError, match=complaint):
        check_namespaces()
