"""The planted faults still fit the code; whether they are noticed is `make mutants`."""

from __future__ import annotations

import pytest

from tests.support.mutants import ROOT, SUITES, mutants


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: str(mutant["name"]))
def test_a_planted_fault_fits_the_code(mutant: dict[str, str]) -> None:
    text = (ROOT / mutant["file"]).read_text("utf-8")

    assert text.count(mutant["old"]) == 1
    assert mutant["old"] != mutant["new"]
    assert mutant["suite"] in SUITES


def test_no_fault_is_listed_twice() -> None:
    names = [mutant["name"] for mutant in mutants()]

    assert len(names) == len(set(names)) >= 30
