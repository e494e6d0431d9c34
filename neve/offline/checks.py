"""Small checks of a JSON document: every refusal says where, what, and what was expected."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from common.errors import RequestError


def an_object(value: object, where: str, known: Collection[str] | None = None) -> dict[str, Any]:
    """Return a JSON object, refused if it has a field that is not among `known`."""
    if not isinstance(value, Mapping):
        raise RequestError(f"{where} is {_shown(value)}, expected an object")
    for name in value:
        if known is not None and name not in known:
            raise unknown(f"{where}: field {name!r}", str(name), known)
    return dict(value)


def a_list(value: object, where: str) -> list[Any]:
    """Return a JSON list."""
    if not isinstance(value, list | tuple):
        raise RequestError(f"{where} is {_shown(value)}, expected a list")
    return list(value)


def a_text(value: object, where: str) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise RequestError(f"{where} is {_shown(value)}, expected a text")
    return value


def a_switch(value: object, where: str) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise RequestError(f"{where} is {_shown(value)}, expected true or false")
    return value


def a_number(value: object, where: str) -> float:
    """Return a number, also one that came as text from a command line."""
    try:
        number = float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        number = None
    if number is None or isinstance(value, bool) or not abs(number) < float("inf"):
        raise RequestError(f"{where} is {_shown(value)}, expected a number")
    return number


def a_count(value: object, where: str) -> int:
    """Return a whole number of at least 0, also one that came as text."""
    number = a_number(value, where)
    if number < 0 or number != int(number):
        raise RequestError(f"{where} is {_shown(value)}, expected a whole number of at least 0")
    return int(value) if isinstance(value, int | str) and str(value).isdigit() else int(number)


def unknown(what: str, name: str, known: Collection[str]) -> RequestError:
    """Return the refusal of a name, with what was probably meant."""
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"
    return RequestError(f"{what} is unknown; {hint}")


def _shown(value: object) -> str:
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
