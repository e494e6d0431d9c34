"""User expressions of a compaction: parsed, bounded, confined, and translated to Spark SQL.

The text is not trusted. A separate grammar accepts only what `docs/reference/expressions.md` lists.
Every name is looked up in the table's schema, every type is checked, and the SQL is generated from
the checked tree. Only the contents of literals reach Spark from the user's text, escaped. All of it
is pure, and every refusal is a `RequestError` that points at the position.

    lexer              text to tokens, within limits
    grammar            tokens to a tree
    operators          literals and operators as typed SQL
    clauses            the functions; predicates, assignments and transforms, checked
    file_pruning       whether a predicate can be true for a row of a file
    native             expressions that Polars evaluates exactly as Spark does

From text to SQL:

    1. `lexer` splits the text into tokens.
    2. `grammar` builds a tree from them.
    3. `clauses` looks up names and types every part, with `operators`.
    4. The typed parts form the SQL of an `Expression`.
"""

from common.expressions.clauses import parse_assignments, parse_predicate
from common.expressions.operators import (
    SPARK_SETTINGS,
    ColumnAssignment,
    Expression,
    NotNativeError,
)

__all__ = [
    "SPARK_SETTINGS",
    "ColumnAssignment",
    "Expression",
    "NotNativeError",
    "parse_assignments",
    "parse_predicate",
]
