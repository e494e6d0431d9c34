"""What Spark's errors stand for: one of ours that a task has raised, memory, a value, a machine.

Spark says where in the SQL a value did not fit. Users did not write that SQL, but the part
that failed usually stands in what they wrote: it is looked for there, spaces and brackets
left aside.
"""

import re

from pyspark.errors import AnalysisException

from common import errors
from common.errors import CompactionError, RewriteError, TransformError
from compactor.rewrite.plan import RewritePlan
from compactor.rewrite.shortage import shortage_of

_RAISED = re.compile(r"common\.errors\.(\w+): (.*)")
_NOT_WORKED_OUT = re.compile(
    r"(?:org\.apache\.spark\.Spark(?:Arithmetic|ArrayIndexOutOfBounds|DateTime|IllegalArgument|"
    r"NoSuchElement|NumberFormat|Runtime|UnsupportedOperation)Exception|"
    r"java\.lang\.ArithmeticException|java\.lang\.RuntimeException(?=: column )): (.*)"
)
"""What Spark raises for a value, not for a machine. It fails again wherever it is tried."""
_ADVICE = re.compile(r" (?:If necessary set|Use [`'\"]try_).*")
"""What no user can do: settings are ours, and functions are those of the allow-list."""
_PLACE = re.compile(r"== SQL\(line \d+, position \d+\) ==\n(.*)\n( *)(\^+)")
_LEFT_ASIDE = re.compile(r"[\s`()]")
_OUR_CAST = re.compile(r"CAST\((.*) AS \w+(?:\(\d+, ?\d+\))?\)")
"""What is put round an expression so that its value has its column's type."""


def translated(plan: RewritePlan, error: Exception) -> CompactionError:
    """Return an error of Spark as one of ours: the one raised in a task, if there is one."""
    text = str(error)
    if raised := _RAISED.findall(text):
        return named_error(*raised[-1])
    if (short := shortage_of(plan, text)) is not None:
        return short
    if plan.transform is not None and plan.transform.asks_spark:
        said = plan.transform.transform.said
        if causes := _NOT_WORKED_OUT.findall(text):
            cause = f"{_ADVICE.sub('', causes[0])}{_place(text, said)}"
            return TransformError(f"{said}: failed for a row: {cause}")
        if isinstance(error, AnalysisException):
            return TransformError(f"{said}: Spark does not take it: {text}")
    return RewriteError(f"Spark job failed: {text}")


def named_error(name: str, cause: str) -> CompactionError:
    """Return the error of a class that a task has named."""
    kind = getattr(errors, name, RewriteError)
    assert issubclass(kind, CompactionError), kind
    return kind(cause)


def _place(text: str, said: str) -> str:
    """Return where Spark says that a value did not fit, for people; empty: it does not say."""
    if (found := _PLACE.search(text)) is None:
        return ""
    shown, before, marked = found.groups()
    fragment = shown[len(before) : len(before) + len(marked)]
    written = [(at, char) for at, char in enumerate(said) if not _LEFT_ASIDE.match(char)]
    text_written = "".join(char for _, char in written).lower()
    inner: str | None = fragment
    while inner:
        wanted = _LEFT_ASIDE.sub("", inner).lower()
        start = text_written.find(wanted)
        if start >= 0 and wanted:
            first, last = written[start][0], written[start + len(wanted) - 1][0]
            last += said[first : last + 1].count("(") > said[first : last + 1].count(")")
            return f" (at column {first + 1}: {said[first : last + 1]})"
        cast = _OUR_CAST.fullmatch(inner)
        inner = None if cast is None else cast.group(1)
    return f" (at {fragment.replace('`', '')})"
