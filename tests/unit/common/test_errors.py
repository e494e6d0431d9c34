"""What an error of another process, or of an actor, is shown as."""

from __future__ import annotations

import pytest

from common.errors import ConfigError, actor_error, error_line

pytestmark = pytest.mark.unit

CREATION = """The actor died because of an error raised in its creation task, \x1b[36mray::G\x1b[39m
  File "app.py", line 7, in __init__
    page = read()
FileNotFoundError: [Errno 2] No such file or directory: 'docs.html'
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (CREATION, "FileNotFoundError: [Errno 2] No such file or directory: 'docs.html'"),
        (
            "ray.exceptions.RayError: first\n  more of it\nand more",
            "ray.exceptions.RayError: first",
        ),
        (
            "starting\n# Fatal error, cannot read the file\n\n",
            "# Fatal error, cannot read the file",
        ),
        ("ValueError: one\nKeyError: two\n", "KeyError: two"),
        ("", "it wrote nothing"),
    ],
)
def test_the_line_that_says_what_went_wrong_is_found(text: str, line: str) -> None:
    assert error_line(text) == line


def test_an_error_that_an_actor_has_raised_is_shown_as_its_own() -> None:
    error = RuntimeError("ray::call() failed")
    error.cause = ConfigError("cannot listen")  # type: ignore[attr-defined]  # as Ray has it
    assert actor_error(error) == "cannot listen"
    assert actor_error(RuntimeError(CREATION)).startswith("FileNotFoundError: ")
