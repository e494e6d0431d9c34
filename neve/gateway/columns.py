"""Columns that come in must be columns of the table: else a compaction would drop them."""

import difflib
from collections.abc import Sequence

import pyarrow as pa

from common.errors import RequestError
from common.model.table import Table
from common.rows.types import normal_type, type_to_text


def refuse_unknown(table: Table, sources: Sequence[tuple[str, pa.Schema]]) -> None:
    """Refuse columns that the table does not have.

    Args:
        table: Where the rows are to go.
        sources: Names for the message, with the schemas of what comes in.

    Raises:
        RequestError: There is one; the message names source and column.
    """
    names = [column.name for column in table.schema]
    for source, schema in sources:
        for field in schema:  # By its place: it may have two of one name.
            if (column := field.name) not in names:
                close = difflib.get_close_matches(column, names, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(names)}"
                kind = type_to_text(normal_type(field.type))
                raise RequestError(
                    f"{source} has the column {column!r}, "
                    f"which table {table.name!r} does not have; {hint} To add it: "
                    f"`neve table set {table.name} --add-column '{column}:{kind}'`"
                )
