"""Expressions that users send with a compaction: parsed, bounded, confined, then Spark SQL.

The text is not trusted. It is read by a grammar of our own that knows nothing but what
`docs/reference/expressions.md` lists; every name is looked up in the table's schema;
every type is checked; and the SQL is written anew from the checked tree. Nothing of the
user's text reaches Spark but the contents of literals, escaped.

    text ─ lexer ─► tokens ─ grammar ─► nodes ─ check (operators, functions) ─► Expression

All of it is pure. Every refusal is a `RequestError` that points at the place.
"""

from common.expressions.clauses import parse_assignments, parse_predicate
from common.expressions.value import SPARK_SETTINGS, Assignment, Expression

__all__ = ["SPARK_SETTINGS", "Assignment", "Expression", "parse_assignments", "parse_predicate"]
