"""The golden conversation runner itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.datadriven import Step, converse

CONVERSATION = """\
# Sizes are summed.

# Comments may be several.
sum times=2 loud
1
2
----
6

sum
----
0

say text='two words'
----
----
two

words
----
----
"""


def answer(step: Step) -> str:
    if step.command == "say":
        return "\n\n".join(step.args["text"].split())
    return str(sum(int(line) for line in step.lines) * int(step.args.get("times", "1")))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "sums.golden"
    file.write_text(CONVERSATION, encoding="utf-8")
    return file


def test_a_true_conversation_passes(path: Path) -> None:
    converse(path, answer)


def test_a_wrong_answer_names_file_line_and_both_answers(path: Path) -> None:
    with pytest.raises(AssertionError, match=r"(?s)sums.golden:4.*answered\n7\n.*has\n6"):
        converse(path, lambda step: "7")


def test_rewriting_a_true_conversation_changes_nothing(path: Path) -> None:
    converse(path, answer, rewrite=True)

    assert path.read_text(encoding="utf-8") == CONVERSATION


def test_rewriting_changes_only_what_differs(path: Path) -> None:
    path.write_text(CONVERSATION.replace("\n6\n", "\nwrong\n\n"), encoding="utf-8")
    converse(path, answer, rewrite=True)

    assert "\n----\n6\n" in path.read_text(encoding="utf-8")
    converse(path, answer)


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "sum\n1\n", "x\n----\n----\n1"])
def test_a_broken_file_is_refused(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")

    with pytest.raises(AssertionError):
        converse(path, answer)


def test_a_bare_argument_is_there_and_empty(path: Path) -> None:
    seen: list[Step] = []
    converse(path, lambda step: seen.append(step) or answer(step))

    assert seen[0].args == {"times": "2", "loud": ""}
    assert seen[0].text == "1\n2"
