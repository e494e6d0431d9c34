"""Expressions that users send with a compaction: parsed, bounded, confined, then Spark SQL.

The text is not trusted. It is read by a grammar of our own that knows nothing but what
`docs/reference/expressions.md` lists; every name is looked up in the table's schema;
every type is checked; and the SQL is written anew from the checked tree. Nothing of the
user's text reaches Spark but the contents of literals, escaped. All of it is pure, and
every refusal is a `RequestError` that points at the place.

    lexer              text to tokens, within limits
    grammar            tokens to a tree
    types              types as expressions tell them apart; what parsing returns
    operators          literals and operators as typed SQL
    functions          the functions that may be called
    clauses            a predicate or a list of assignments, checked against a schema
    file_pruning       whether a predicate can be true for a row of a file
    request_transform  what a request does to rows

How a text becomes SQL:

    1. `lexer` cuts the text into tokens.
    2. `grammar` makes a tree of them.
    3. `clauses` looks names up and types every part, with `operators` and `functions`.
    4. The typed parts are the SQL of an `Expression`.
"""

from common.expressions.clauses import parse_assignments, parse_predicate
from common.expressions.types import SPARK_SETTINGS, ColumnAssignment, Expression

__all__ = [
    "SPARK_SETTINGS",
    "ColumnAssignment",
    "Expression",
    "parse_assignments",
    "parse_predicate",
]
