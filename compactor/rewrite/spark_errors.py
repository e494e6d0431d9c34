"""What Spark's errors stand for: one of ours that a task has raised, memory, a value, a machine."""

import re

from pyspark.errors import AnalysisException

from common import errors
from common.errors import CompactionError, RewriteError
from compactor.rewrite.plan import RewritePlan
from compactor.rewrite.shortage import shortage_of

_RAISED = re.compile(r"common\.errors\.(\w+): (.*)")
_NOT_WORKED_OUT = re.compile(
    r"(?:org\.apache\.spark\.Spark\w+Exception|java\.lang\.(?:Runtime|Arithmetic)Exception): (.*)"
)
"""What Spark raises for a value, not for a machine."""


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
            cause = causes[0].partition(" If necessary set ")[0]  # No user can set it.
            return RewriteError(f"{said}: failed for a row: {cause}")
        if isinstance(error, AnalysisException):
            return RewriteError(f"{said}: Spark does not take it: {text}")
    return RewriteError(f"Spark job failed: {text}")


def named_error(name: str, cause: str) -> CompactionError:
    """Return the error of a class that a task has named."""
    kind = getattr(errors, name, RewriteError)
    assert issubclass(kind, CompactionError), kind
    return kind(cause)
