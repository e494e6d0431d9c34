"""Which files of a directory make one table, and why the others do not. Pure.

    folders → partition columns → key and version columns → schemas united, for as many
    files as can be → types of partitions → values of folders and statistics

A file that does not fit is told with its reason, and does not change what the others
make.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from common.errors import RequestError
from common.model.key_values import KeyType, key_type_of, plain_value
from common.model.table import Column, Table
from common.rows.partitions import folders_of, partition_of, value_of_folder
from common.rows.schema import columns_of
from common.rows.types import type_from_text
from neve.importing.folders import type_of_values, usual_columns
from neve.importing.footers import Footer
from neve.importing.listing import Found
from neve.importing.unions import best_union
from neve.importing.values import Survey, Tally, Wanted

STATISTICS_LETTERS_MAX = 16
"""Statistics of longer texts may be cut off."""


@dataclass(slots=True)
class _Looked:
    file: Found
    footer: Footer
    said: dict[str, str | None]


def survey(looked: Sequence[tuple[Found, Footer | str]], wanted: Wanted) -> Survey:
    """Return what files could be together.

    Args:
        looked: Files by path, with what their footers say or why there is none.
        wanted: By the user.

    Raises:
        RequestError: What the user said of types or columns cannot be.
    """
    found = Survey()
    files = _in_folders(looked, wanted, found)
    files = _with_columns(files, wanted, found)
    schema, files = _united(files, wanted, found)
    found.columns = _columns(schema, files, wanted, found)
    if files:
        _counted(files, wanted, found)
    return found


def _in_folders(
    looked: Sequence[tuple[Found, Footer | str]], wanted: Wanted, found: Survey
) -> list[_Looked]:
    files = []
    for file, footer in sorted(looked, key=lambda each: each[0].path):
        if isinstance(footer, str):
            found.misfits[file.path] = footer
            continue
        try:
            files.append(_Looked(file, footer, folders_of(file.path)))
        except RequestError as error:
            found.misfits[file.path] = str(error)
    if wanted.partition_by is None:
        found.partition_by = usual_columns(list(each.said) for each in files)
    else:
        found.partition_by = wanted.partition_by
    kept = []
    for each in files:
        if set(each.said) == set(found.partition_by):
            kept.append(each)
        else:
            there, there_should = _named(each.said), _named(found.partition_by)
            found.misfits[each.file.path] = f"it lies in {there}, wanted {there_should}"
    return kept


def _named(columns: Sequence[str] | Mapping[str, object]) -> str:
    return "folders of " + ", ".join(columns) if columns else "no partition's folder"


def _with_columns(files: list[_Looked], wanted: Wanted, found: Survey) -> list[_Looked]:
    needed = {*wanted.key, *filter(None, [wanted.version_column])} - {*found.partition_by}
    required = [each.name for each in wanted.columns or () if not each.nullable]
    kept = []
    for each in files:
        missing = sorted(needed.difference(each.footer.schema.names))
        null = next((name for name in required if _nulls(each, name)), None)
        if missing:
            found.misfits[each.file.path] = (
                f"it lacks the columns {', '.join(missing)} of the key or version"
            )
        elif null is not None:
            found.misfits[each.file.path] = f"its column {null} holds nulls, but must not be null"
        else:
            nulls = _nulls(each, wanted.version_column)
            found.untold += nulls is None
            found.unversioned_rows += nulls or 0
            kept.append(each)
    return kept


def _nulls(each: _Looked, name: str | None) -> int | None:
    """Return how many nulls a column has, if that was asked; None: its statistics do not tell."""
    if name is None or name not in each.footer.columns:
        return 0
    return each.footer.columns[name].nulls


def _united(files: list[_Looked], wanted: Wanted, found: Survey) -> tuple[pa.Schema, list[_Looked]]:
    paths: dict[pa.Schema, list[str]] = {}
    for each in files:
        paths.setdefault(each.footer.schema, []).append(each.file.path)
    union = best_union(paths, wanted.columns)
    found.misfits |= union.misfits
    return union.schema, [each for each in files if each.file.path not in union.misfits]


def _columns(
    schema: pa.Schema, files: list[_Looked], wanted: Wanted, found: Survey
) -> tuple[Column, ...]:
    """Return the table's columns: those of files, and those that only folders name."""
    if wanted.columns is not None:
        return wanted.columns
    written = [_loosened(each, wanted, found) for each in schema]
    for name in found.partition_by:
        if name not in schema.names:
            told = wanted.partition_types.get(name)
            text = told or type_of_values(each.said[name] for each in files)
            written.append(pa.field(name, type_from_text(text)))
    columns = columns_of(pa.schema(written))
    if unknown := sorted(set(wanted.partition_types) - set(found.partition_by)):
        raise RequestError(f"partition type of {unknown[0]!r}: no folder names such a column")
    if inside := sorted(set(wanted.partition_types).intersection(schema.names)):
        raise RequestError(
            f"partition type of {inside[0]!r} cannot be chosen: files have the column, "
            "and so its type"
        )
    return columns


def _loosened(field_: pa.Field, wanted: Wanted, found: Survey) -> pa.Field:
    """Return a column as the table has it: files to come may leave a partition column out."""
    return field_.with_nullable(True) if field_.name in found.partition_by else field_


def _counted(files: list[_Looked], wanted: Wanted, found: Survey) -> None:
    """Count the files whose folders say what their columns can hold, and do hold."""
    if any(name not in {column.name for column in found.columns} for name in found.partition_by):
        raise RequestError(f"partition columns {list(found.partition_by)} are not the table's")
    table = Table(
        id="",
        name="",
        location="",
        schema=found.columns,
        partition_by=found.partition_by,
    )
    types = {column.name: column.type for column in found.columns}
    kinds = {name: key_type_of(types[name]) for name in found.partition_by}
    for each in files:
        try:
            plain = {name: value_of_folder(each.said[name], kinds[name]) for name in kinds}
            _check_statistics(each, plain, kinds)
            text = partition_of(table, list(plain.values())).text
        except RequestError as error:
            found.misfits[each.file.path] = str(error)
            continue
        found.files.append(each.file)
        found.total.add(each.file, each.footer)
        if kinds:
            found.partitions.setdefault(text, Tally()).add(each.file, each.footer)


def _check_statistics(
    each: _Looked, plain: Mapping[str, object], kinds: Mapping[str, KeyType]
) -> None:
    """Refuse a file with a partition column that contradicts its folder.

    Raises:
        RequestError: It does.
    """
    for name, value in plain.items():
        said = each.footer.columns.get(name)
        text = each.said[name] or ""
        if said is None or said.low is None or len(text) > STATISTICS_LETTERS_MAX:
            continue
        try:
            ends = {plain_value(end, kinds[name]) for end in (said.low, said.high)}
        except RequestError:
            continue  # Statistics of a type that is written otherwise.
        if ends != {value}:
            raise RequestError(
                f"its column {name} holds {said.low!r} to {said.high!r}, "
                f"but its folder says {each.said[name]!r}"
            )
