"""What the selectors' options have in common: names, numbers, and when it is enough."""

from collections.abc import Collection, Mapping, Sequence

from common.errors import RequestError
from common.model.file import DataFile
from common.spi.selector import Chosen

FILES_MIN = "min_files"
"""Choose nothing unless so many files are chosen; known to all but `deletes`."""
EDGE_S = 0.001
"""A time is told so much late: bounds are not included, and sums of times are rounded."""


def check_names(selector: str, options: Mapping[str, str], known: Collection[str]) -> None:
    """Refuse options that a selector does not know.

    Raises:
        RequestError: Names the first one, and those that there are.
    """
    if unknown := sorted(set(options).difference(known)):
        names = ", ".join(sorted(known)) or "none"
        raise RequestError(f"selector {selector}: unknown option {unknown[0]!r}; known: {names}")


def check_given(selector: str, options: Mapping[str, str], wanted: Collection[str]) -> None:
    """Refuse options of which none says what is wanted.

    Raises:
        RequestError: Names the options of which at least one is needed.
    """
    if not set(options).intersection(wanted):
        names = " or ".join(sorted(wanted))
        raise RequestError(f"selector {selector}: give at least one of {names}")


def share(options: Mapping[str, str], name: str, default: float) -> float:
    """Return an option that is a share of something: more than 0, at most 1.

    Raises:
        RequestError: It is no such number.
    """
    text = options.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise RequestError(f"option {name} {text!r} must be more than 0, at most 1")
    return value


def files_min(options: Mapping[str, str]) -> int:
    """Return how many files must be chosen at least.

    Raises:
        RequestError: It is no whole number of at least 1.
    """
    text = options.get(FILES_MIN, "1")
    if not text.isdecimal() or int(text) < 1:
        raise RequestError(f"option {FILES_MIN} {text!r} must be a whole number of at least 1")
    return int(text)


def chosen(
    files: Sequence[DataFile],
    options: Mapping[str, str],
    what: str,
    times_s: Mapping[str, float] | None = None,
) -> Chosen:
    """Return the choice of these files, or of none if they are too few.

    Args:
        files: Those that fit.
        options: With or without `min_files`.
        what: What they have in common: the rest of "3 files are …".
        times_s: Path → when a file comes to fit by time alone; chosen or not.
    """
    times_s = times_s or {}
    wanted = files_min(options)
    count = f"{len(files)} file is" if len(files) == 1 else f"{len(files)} files are"
    if len(files) < wanted:
        reason = f"{count} {what}, {wanted} are wanted at least"
        return Chosen(reason=reason, times_s=times_s)
    paths = tuple(file.path for file in files)
    return Chosen(files=paths, reason=f"{count} {what}", times_s=times_s)
