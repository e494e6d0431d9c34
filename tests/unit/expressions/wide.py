"""Expressions just within the bounds, by name of what they are wide or deep in."""

from __future__ import annotations

from common.expressions.lexer import DEPTH_MAX, LIST_MAX

DEEP = DEPTH_MAX - 1
WIDE = (
    " or ".join("id=0" for _ in range(LIST_MAX)),
    " and ".join("id=0" for _ in range(LIST_MAX)),
    f"id in ({', '.join(map(str, range(LIST_MAX)))})",
    f"{'||'.join(['name'] * LIST_MAX)} = 'x'",
    f"{'(' * DEEP}flag{')' * DEEP}",
    f"{'not ' * DEEP}flag",
    f"{'upper(' * (DEEP - 1)}name{')' * (DEEP - 1)} = 'x'",
    f"{'case when flag then ' * (DEEP - 1)}1{' end' * (DEEP - 1)} = 1",
    f"{'cast(' * (DEEP - 1)}small{' as bigint)' * (DEEP - 1)} = 1",
    f"{'+'.join(['price'] * (DEEP - 1))} = 1",
    f"case {'when id=1 then 1 ' * 500}end = 1",
    f"name rlike '{'a' * 200}'",
    f"name = '{'x' * 9_000}'",
)
