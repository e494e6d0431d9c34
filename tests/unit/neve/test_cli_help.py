"""The help of every verb has an example that can be typed, and fits 100 columns."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from neve.cli import app
from tests.support.command_line import command_line, invoke

WIDTH = 100
EXAMPLES = {verb.words: verb.example for verb in app.verbs()}


def verbs(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for name, each in command.commands.items():
            yield from verbs(each, (*words, name))
    else:
        yield " ".join(words), command


VERBS = dict(verbs(typer.main.get_command(command_line())))


def shown_help(words: str) -> str:
    environ = {"COLUMNS": str(WIDTH), "TERMINAL_WIDTH": str(WIDTH)}
    result = invoke([*words.split(), "--help"], environ)
    assert result.exit_code == 0, result.output
    return result.output


def test_every_declared_verb_is_a_command() -> None:
    assert EXAMPLES.keys() == VERBS.keys()


@pytest.mark.parametrize("words", VERBS)
def test_a_verb_is_built_without_the_verbs_of_other_modules(words: str) -> None:
    built = {verb.words for verb in app.verbs(words.split())}

    first = words.split()[0]
    assert {other for other in VERBS if other.split()[0] == first} <= built < VERBS.keys()


def test_without_a_known_verb_every_verb_is_built() -> None:
    assert {verb.words for verb in app.verbs(["unknown"])} == VERBS.keys()


@pytest.mark.parametrize("words", VERBS)
def test_the_help_shows_the_example_and_fits(words: str) -> None:
    text = shown_help(words)

    assert "Example: neve" in text
    assert EXAMPLES[words].split() == " ".join(text.split()).partition("Example: ")[2].split()
    assert max(map(len, text.splitlines())) <= WIDTH


@pytest.mark.parametrize("words", VERBS)
def test_the_example_parses(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("backup.neve").touch()
    program, *arguments = shlex.split(EXAMPLES[words])
    own = words.split()

    assert program == "neve"
    assert arguments[: len(own)] == own
    VERBS[words].make_context(words, arguments[len(own) :])


@pytest.mark.parametrize("words", VERBS)
def test_arguments_are_written_in_capitals(words: str) -> None:
    arguments = [param for param in VERBS[words].params if param.param_type_name == "argument"]

    assert [argument.name for argument in arguments if not (argument.metavar or "").isupper()] == []
