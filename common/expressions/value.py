"""What parsing returns: SQL that is safe to run, and what the engine must promise for it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

NOW = ":now"
"""Stands in the SQL for the moment that is fixed for an attempt."""

# The SQL is ours, so that these three are all that can hold the placeholder's letters.
_NOW_OR_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|`(?:[^`]|``)*`|:now\b")

SPARK_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "spark.sql.ansi.enabled": "true",
        "spark.sql.ansi.doubleQuotedIdentifiers": "false",
        "spark.sql.caseSensitive": "true",
        "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "false",
        "spark.sql.parser.escapedStringLiterals": "false",
        "spark.sql.parser.quotedRegexColumnNames": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.timestampType": "TIMESTAMP_LTZ",
        "spark.sql.variable.substitute": "false",
    }
)
"""The session in which an expression means what its documentation says.

ANSI: an overflow, a division by zero and a cast that does not fit fail the job instead of
making a null.
"""


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression over the columns of one table.

    Attributes:
        sql: Spark SQL, made anew from the checked tree; a predicate's is never null.
        columns: The top-level columns it reads, in order of name.
        text: What the user wrote, for people; never run.
    """

    sql: str
    columns: tuple[str, ...]
    text: str

    @property
    def uses_now(self) -> bool:
        """Does the result depend on the attempt's time?"""
        return any(found.group() == NOW for found in _NOW_OR_QUOTED.finditer(self.sql))

    def at(self, now_us: int) -> str:
        """Return the SQL with `now()` fixed.

        Args:
            now_us: Microseconds since the epoch; one value for all tasks of an attempt.
        """
        fixed = f"timestamp_micros({int(now_us)})"
        return _NOW_OR_QUOTED.sub(
            lambda found: fixed if found.group() == NOW else found.group(), self.sql
        )


@dataclass(frozen=True, slots=True)
class Assignment:
    """A column and its new value; the SQL has the column's type, or fails."""

    column: str
    expression: Expression
