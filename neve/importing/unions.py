"""One schema for as many files as can be. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from common.errors import RequestError
from common.model.table import Column
from common.rows.schema import arrow_schema, columns_of, require_readable, unite_schemas

SEEDS_MAX = 20
"""Schemas that are tried as the one that the others must fit."""


@dataclass(frozen=True, slots=True)
class Union:
    """A schema, and the files that do not fit it with the reason of each."""

    schema: pa.Schema
    misfits: Mapping[str, str] = field(default_factory=dict)


def best_union(
    paths: Mapping[pa.Schema, Sequence[str]], columns: Sequence[Column] | None = None
) -> Union:
    """Return the union that most files fit.

    Args:
        paths: Files by their schema, in the order of their paths.
        columns: Of the table that they are to join; None: it is new.
    """
    order = sorted(paths, key=lambda schema: (-len(paths[schema]), paths[schema][0]))
    if columns is not None:
        return _joined(paths, order, arrow_schema(columns))
    unions: list[Union] = []
    for first in order[:SEEDS_MAX]:
        unions.append(_grown(paths, [first, *(each for each in order if each is not first)]))
        if not unions[-1].misfits:
            break
    return min(unions, key=lambda union: len(union.misfits), default=Union(pa.schema([])))


def _grown(paths: Mapping[pa.Schema, Sequence[str]], order: Sequence[pa.Schema]) -> Union:
    """Unite schemas one by one; those that do not widen to the ones before are left out."""
    united: pa.Schema | None = None
    misfits: dict[str, str] = {}
    for schema in order:
        sources = [] if united is None else [("the other files", united)]
        try:
            made = unite_schemas([*sources, (f"file {paths[schema][0]}", schema)])
            columns_of(made)  # Refuses types that no table has.
        except RequestError as error:
            misfits |= dict.fromkeys(paths[schema], str(error))
        else:
            united = made
    return Union(united if united is not None else pa.schema([]), misfits)


def _joined(
    paths: Mapping[pa.Schema, Sequence[str]], order: Sequence[pa.Schema], known: pa.Schema
) -> Union:
    misfits: dict[str, str] = {}
    for schema in order:
        try:
            _require_known(f"file {paths[schema][0]}", schema, known)
        except RequestError as error:
            misfits |= dict.fromkeys(paths[schema], str(error))
    return Union(known, misfits)


def _require_known(source: str, schema: pa.Schema, known: pa.Schema) -> None:
    require_readable(source, schema, known)
    if unknown := sorted(set(schema.names) - set(known.names)):
        raise RequestError(f"{source} has the columns {', '.join(unknown)}, the table has not")
