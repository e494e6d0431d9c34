"""The error tree. Siblings answer one question: who must act?

    CompactionError
    ├── ConfigError                 the operator must change something
    │   └── SettingError            a setting is not allowed
    ├── RequestError                the caller must change something
    │   ├── UnknownTableError
    │   ├── UnknownTabletError
    │   └── UnknownGroupError
    ├── RefusedError                nothing is wrong, but the state does not allow it now
    ├── UnavailableError            a part of the service does not answer
    ├── MetadataError               the store refused a change, or did not answer
    │   ├── ConflictError           nothing was written; re-read and decide again
    │   ├── BrokenValueError        a stored value of one table or tablet cannot be read
    │   └── UnknownOutcomeError     it may have been written; look for our mark
    ├── PluginError                 a planner, selector or dispatcher misbehaved
    └── RewriteError                the job itself failed on a compactor
        ├── InputError              an input is missing, unreadable or of the wrong schema
        │   └── NotStitchableError  its row groups cannot be copied as they are
        ├── VerificationError       the outputs do not match the inputs
        ├── EngineDiedError         the Spark driver died while the job ran
        ├── EngineRestartedError    the Spark driver was ended because of another job
        ├── AttemptStalledError     the job made no progress for too long
        ├── TransformError          the request's own expression or plug-in fails on its rows
        ├── MemoryShortError        a task needs more memory than it may have
        └── AttemptCancelledError   the coordinator or the user took the job back

Expected refusals are return values (`Refusal`); these exceptions are for what a
caller cannot be expected to handle on the next line. A broken invariant is an
`AssertionError`, outside this tree, caught nowhere.

`redacted` removes secrets from the texts of errors, logs and answers.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from traceback import extract_tb
from typing import Any


def first_line(error: BaseException) -> str:
    """Return an error in one line: Névé's own as it is, others with their class."""
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, CompactionError) else f"{type(error).__name__}: {text}"


ERROR_LINE = re.compile(r"[\w.]*(Error|Exception|Exit|Interrupt)\b")
"""Beginning of the last part of a traceback."""
ERROR_LINE_CHARACTERS = 300
COLOURS = re.compile(r"\x1b\[[\d;]*m")


def error_line(text: str) -> str:
    """Return the line of an output that explains a failure: the last error, or the last line.

    Args:
        text: A log, or a traceback as other processes show it.
    """
    lines = [line.strip() for line in COLOURS.sub("", text).splitlines() if line.strip()]
    errors = [line for line in lines if ERROR_LINE.match(line)]
    cause: str = [*(lines or ["it wrote nothing"]), *errors][-1]
    return cause[:ERROR_LINE_CHARACTERS]


def actor_error(error: BaseException) -> str:
    """Return in one line why an actor failed, from the error that Ray raises."""
    cause = getattr(error, "cause", None)
    return first_line(cause) if isinstance(cause, BaseException) else error_line(str(error))


class CompactionError(Exception):
    """Everything that Névé raises on purpose."""


class ConfigError(CompactionError):
    """The operator must change a setting or the machine."""


class SettingError(ConfigError):
    """A setting, or a combination, that is not allowed; `names` has the full names."""

    def __init__(self, message: str, *names: str) -> None:
        super().__init__(message)
        self.names = names


class RequestError(CompactionError):
    """The caller must change the request."""


class UnknownTableError(RequestError):
    """No table has this name."""


class UnknownTabletError(RequestError):
    """No tablet has this end."""


class UnknownGroupError(RequestError):
    """No compaction group has this name."""


class RefusedError(CompactionError):
    """The request is sound, but the present state does not allow it.

    `code` is a stable word for programs, or empty.
    """

    def __init__(self, reason: str = "", code: str = "") -> None:
        super().__init__(reason)
        self.code = code


class UnavailableError(CompactionError):
    """A part of the service did not answer in time."""


class MetadataError(CompactionError):
    """The store refused a change, or did not answer."""


class ConflictError(MetadataError):
    """Nothing was written: a requirement failed on every try."""


class BrokenValueError(MetadataError):
    """A stored value is malformed. Reading it again does not help; other values are intact."""


class UnknownOutcomeError(MetadataError):
    """The store did not answer: the change may have been made, or may still be on its way."""


class PluginError(CompactionError):
    """A plug-in raised, or returned something that its contract forbids."""


class RewriteError(CompactionError):
    """The job failed on a compactor; its inputs are unchanged."""


class InputError(RewriteError):
    """An input file is missing, unreadable or has the wrong schema."""


class NotStitchableError(InputError):
    """The row groups of a file cannot be copied as bytes; its rows must be rewritten."""


class VerificationError(RewriteError):
    """The outputs do not account for every row of the inputs."""


class EngineDiedError(RewriteError):
    """The Spark driver or its executors died while the job ran."""


class EngineRestartedError(RewriteError):
    """The Spark driver was ended on purpose, because of another job."""


class AttemptStalledError(RewriteError):
    """The job made no progress for too long; the Spark driver was ended."""


class TransformError(RewriteError):
    """The request's own expression or plug-in fails on its rows; a retry fails the same way."""


class MemoryShortError(RewriteError):
    """A task needs more memory than it may use; smaller pieces may fit."""


class AttemptCancelledError(RewriteError):
    """The coordinator or the user took the attempt back."""


def error_by_name(name: str, cause: str) -> CompactionError:
    """Return the error of this tree that another process named, or a RewriteError."""
    kind = globals().get(name, RewriteError)
    assert issubclass(kind, CompactionError), kind
    error: CompactionError = kind(cause)
    return error


def error_name(error: CompactionError) -> str:
    """Return the name of an error's nearest class in this tree."""
    names = (kind.__name__ for kind in type(error).__mro__)
    return next(name for name in names if name in globals())


def all_causes(error: BaseException) -> str:
    """Return an error with the line that raised it; for a group, all its members."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(all_causes, error.exceptions))
    *_, frame = [None, *extract_tb(error.__traceback__)]
    position = "" if frame is None else f" ({Path(frame.filename).name}:{frame.lineno})"
    return f"{type(error).__name__}: {error}{position}"


# ---------------------------------------------------------------------------------------- Redaction
# Remove secrets from texts. Logs and answers use this one function.
#
# A URI may carry a password before its host, and keys in its query. Both are removed from every
# text, whatever the source of the URI.


HIDDEN = "***"
DEPTH_MAX = 6
_BETWEEN = re.compile(r"([\s'\"<>]+)")
"""Characters that no URI has; a text without them may be a list of URIs."""
_OF_A_SENTENCE = "),;:."


def redacted(text: str) -> str:
    """Return a text without the user names, passwords and query options of its URIs."""
    if "://" not in text:
        return text
    return "".join(map(_redacted_word, _BETWEEN.split(text)))


def _redacted_word(word: str) -> str:
    scheme, colon, rest = word.partition("://")
    if not colon or not ("@" in rest or "?" in rest):
        return word
    before, at, after = rest.rpartition("@")
    if at and _is_user(before):
        rest = f"{HIDDEN}@{after}"
    shown, mark, hidden = rest.partition("?")
    if not mark:
        return f"{scheme}://{rest}"
    sentence = hidden[len(hidden.rstrip(_OF_A_SENTENCE)) :]
    return f"{scheme}://{shown}?{HIDDEN}{sentence}"


def _is_user(before: str) -> bool:
    """Return whether the text before an `@` is a user, not a host with part of a path."""
    host, slash, path = before.partition("/")
    _, colon, port = host.partition(":")
    return not slash or ":" in path or (bool(colon) and not port.isdigit())


def redacted_tree(value: Any, depth_max: int = DEPTH_MAX) -> Any:
    """Return texts, and lists and mappings of texts, redacted; other values as redacted text."""
    if isinstance(value, str):
        return redacted(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth_max and isinstance(value, Mapping):
        return {str(key): redacted_tree(item, depth_max - 1) for key, item in value.items()}
    if depth_max and isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [redacted_tree(item, depth_max - 1) for item in value]
    return redacted(str(value))
