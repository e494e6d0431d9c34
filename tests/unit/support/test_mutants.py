"""The planted faults still fit the code; whether a suite notices them is `make mutants`."""

from __future__ import annotations

import ast

import pytest

from tests.support.mutants import ROOT, SUITES, file_of, mutants, planted


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: str(mutant["name"]))
def test_a_planted_fault_fits_the_code(mutant: dict[str, str]) -> None:
    text = (ROOT / file_of(mutant)).read_text("utf-8")

    assert ast.dump(ast.parse(planted(text, mutant))) != ast.dump(ast.parse(text))
    assert mutant["suite"] in SUITES


def test_a_fault_is_found_by_its_syntax_and_not_by_its_lines() -> None:
    mutant = {
        "name": "the bound is left out",
        "function": "x.py:Queue.offer",
        "old": "if len(self.jobs) >= bound: return None",
        "new": "",
    }
    text = (
        "class Queue:\n"
        "    def offer(self, bound):\n"
        "        if (  # full\n"
        "            len(self.jobs)\n"
        "            >= bound\n"
        "        ):\n"
        "            return None\n"
        "        return 1\n"
    )

    assert planted(text, mutant) == (
        "class Queue:\n    def offer(self, bound):\n        pass\n        return 1\n"
    )


def test_no_fault_is_listed_twice() -> None:
    names = [mutant["name"] for mutant in mutants()]

    assert len(names) == len(set(names)) >= 30
