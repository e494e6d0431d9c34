"""Golden conversations: a text file in which a person reads what the code answers.

A file is a list of steps, parted by blank lines. A step is an optional comment, a command with
arguments, input lines, `----`, and the answer:

    # One heavy file spoils the set it is in, but not the set beneath it.
    choose ratio=2
    big 900
    a 10
    ----
    a

An answer that holds blank lines stands between doubled rules (`----` twice before, twice after).
`pytest --rewrite` writes the answers that the code gives now; read the diff before you commit it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

RULE = "----"


@dataclass(frozen=True, slots=True)
class Step:
    """One command and what it was told.

    Attributes:
        command: The first word.
        args: `name=value` pairs; a bare `name` is there with an empty value.
        lines: The input, one entry a line, without the rule.
        where: File and line, for messages.
    """

    command: str
    args: dict[str, str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    where: str = ""

    @property
    def text(self) -> str:
        """Return the input as one string."""
        return "\n".join(self.lines)


@dataclass(frozen=True, slots=True)
class _Block:
    """A step as it stands in the file: `told` is every line in front of its rule."""

    told: tuple[str, ...]
    step: Step
    expected: str


Answer = Callable[[Step], str]


def converse(path: Path, answer: Answer, *, rewrite: bool = False) -> None:
    """Hold the conversation in `path` and compare every answer.

    Args:
        path: The golden file.
        answer: Gives the answer to one step; its closing newlines do not count.
        rewrite: Write what was answered instead of comparing.

    Raises:
        AssertionError: An answer differs, or the file has no step.
    """
    blocks = list(_parse(path))
    assert blocks, f"{path.name} holds no step: expected a command, its input and {RULE}"
    written: list[str] = []
    for block in blocks:
        actual = answer(block.step).rstrip("\n")
        if not rewrite:
            assert actual == block.expected, (
                f"{block.step.where}: `{block.step.command}` answered\n{actual}\n"
                f"where the file has\n{block.expected}\n"
                f"(`pytest --rewrite` writes the new answers)"
            )
        written += _render(block, actual)
    if rewrite:
        path.write_text("\n".join([*written, ""]), encoding="utf-8")


def _parse(path: Path) -> Iterator[_Block]:
    lines = path.read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        begin = at
        while at < len(lines) and (not lines[at].strip() or lines[at].startswith("#")):
            at += 1
        if at == len(lines):
            assert not any(lines[begin:]), f"{path.name}: a comment stands behind the last step"
            return
        where = f"{path.name}:{at + 1}"
        assert RULE in lines[at:], f"{where}: the step has no {RULE}"
        rule = lines.index(RULE, at)
        step = _step(lines[at], tuple(lines[at + 1 : rule]), where)
        expected, at = _expected(lines, rule + 1, where)
        yield _Block(tuple(lines[begin:rule]), step, expected)


def _step(command_line: str, lines: tuple[str, ...], where: str) -> Step:
    command, *words = shlex.split(command_line)
    args = {name: value for name, _, value in (word.partition("=") for word in words)}
    return Step(command, args, lines, where)


def _expected(lines: list[str], at: int, where: str) -> tuple[str, int]:
    """Return the answer that begins at line `at`, and the line behind it."""
    doubled = at < len(lines) and lines[at] == RULE
    if doubled:
        at += 1
    end = at
    while end < len(lines) and not _ends(lines, end, doubled=doubled):
        end += 1
    assert not doubled or end < len(lines), f"{where}: the doubled rule is not closed"
    return "\n".join(lines[at:end]).rstrip("\n"), end + 2 if doubled else end


def _ends(lines: list[str], at: int, *, doubled: bool) -> bool:
    if doubled:
        return lines[at : at + 2] == [RULE, RULE]
    return not lines[at].strip()


def _render(block: _Block, actual: str) -> list[str]:
    answer = actual.split("\n") if actual else []
    doubled = any(not line.strip() for line in answer)
    opening, closing = ([RULE, RULE], [RULE, RULE]) if doubled else ([RULE], [])
    return [*block.told, *opening, *answer, *closing]
