"""The transform of a request, parsed from its stored text and checked against a table.

The gateway parses it at submission, to refuse it early. A rewrite parses it again, to run it. Both
use this module, so they cannot disagree.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from common.errors import RequestError
from common.expressions import parse_assignments, parse_predicate
from common.expressions.types import ColumnAssignment, Expression
from common.model.request import KeyRange, TransformKind, TransformSpec
from common.model.table import Column, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """A transform that fits its table: a predicate, assignments, or a plug-in's name."""

    kind: TransformKind
    description: str
    """For messages: `delete where x > 1`."""
    predicate: Expression | None = None
    assignments: tuple[ColumnAssignment, ...] = ()
    plugin: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """The predicate, or the assignments' expressions in order."""
        if self.predicate is not None:
            return (self.predicate,)
        return tuple(one.expression for one in self.assignments)

    @property
    def columns(self) -> frozenset[str]:
        """The columns that the expressions read."""
        return frozenset(name for one in self.expressions for name in one.columns)


def parse_transform(
    spec: TransformSpec,
    table: Table,
    key_range: KeyRange,
    columns: Sequence[Column] | None = None,
) -> Transform | None:
    """Return the transform of a request, or None if it has none.

    Args:
        spec: As stored. `text` is the part after `delete where` or `set`.
        table: Table of the rows.
        key_range: The rows that the request covers.
        columns: Columns of the rows, if they are wider than the table's.

    Raises:
        RequestError: It does not fit the table; names the reason.
    """
    if spec.kind is TransformKind.NONE:
        return None
    if not table.key and key_range != KeyRange():
        raise RequestError(
            f"table {table.name} has no key: a transform applies to all its rows, expected no range"
        )
    schema = table.schema if columns is None else columns
    match spec.kind:
        case TransformKind.DELETE_WHERE:
            return _deletion(spec, table, schema)
        case TransformKind.SET:
            description = f"set {spec.text}"
            assignments = parse_assignments(spec.text, schema, protected_columns(table))
            return Transform(kind=spec.kind, description=description, assignments=assignments)
        case TransformKind.PLUGIN:
            if not spec.name:
                raise RequestError("a transform by a plug-in lacks the plug-in's name")
            description = f"transform {spec.name}"
            return Transform(
                kind=spec.kind,
                description=description,
                plugin=spec.name,
                options=dict(spec.options),
            )


def protected_columns(table: Table) -> frozenset[str]:
    """Return the columns that no transform may change: they identify and place the row."""
    named = (table.version_column, table.tombstone_column, table.time_column)
    return frozenset({*table.key, *table.partition_by, *filter(None, named)})


def _deletion(spec: TransformSpec, table: Table, schema: Sequence[Column]) -> Transform:
    if table.key and table.tombstone_column is None:
        raise RequestError(
            f"table {table.name} has no tombstone column: without one, older versions "
            f"of deleted rows would reappear; expected a table with `tombstone_column`"
        )
    return Transform(
        kind=spec.kind,
        description=f"delete where {spec.text}",
        predicate=parse_predicate(spec.text, schema),
    )
