"""What job outputs say of themselves in their footers (written by the compactor)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import RequestError
from common.model.tablet import TabletId
from common.parquet.file_inspection import open_table_file
from common.parquet.location import Location
from common.parquet.write import TABLE_FOOTER
from common.readers.pool import in_reader

FOOTER_FORMAT = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFooter:
    """The footer of a job's output. `rows` 0: the mark of a commit that left no rows."""

    path: str
    table: str
    tablet: str
    job: str
    attempt: str
    inputs: tuple[str, ...]
    request: str | None
    purge: bytes | None
    outputs: tuple[str, ...] | None
    """All outputs of the attempt; only its last file knows them."""
    rows: int


@in_reader("file {path}")
def table_of_file(location: Location, path: str) -> str | None:
    """Return the id of the table that a file was written for; None: it does not say.

    Raises:
        RequestError: The file is missing, no Parquet, or damaged.
        UnavailableError: The storage does not answer.
    """
    with open_table_file(location, path) as file:
        said: bytes | None = (file.metadata.metadata or {}).get(TABLE_FOOTER.encode())
    return None if said is None else said.decode(errors="replace")


@in_reader("file {path}")
def read_output_footer(location: Location, path: str) -> OutputFooter | None:
    """Return what an output says of itself; None: it is no output of a job.

    Raises:
        RequestError: The file is missing, no Parquet, damaged, or of another release.
        UnavailableError: The storage does not answer.
    """
    with open_table_file(location, path) as file:
        named: Mapping[bytes, bytes] = file.metadata.metadata or {}
        rows = file.metadata.num_rows
    texts = {
        name.decode().removeprefix("neve."): value.decode(errors="replace")
        for name, value in named.items()
        if name.startswith(b"neve.")
    }
    if "attempt" not in texts:
        return None
    if texts.get("format") != FOOTER_FORMAT:
        raise RequestError(f"file {path} has a footer of format {texts.get('format')!r}")
    try:
        return _footer(path, texts, rows)
    except (KeyError, ValueError, TypeError) as error:
        raise RequestError(f"file {path} has a footer that makes no sense: {error}") from error


def _footer(path: str, texts: Mapping[str, str], rows: int) -> OutputFooter:
    outputs = texts.get("outputs")
    TabletId.parse("", texts["tablet"])
    return OutputFooter(
        path=path,
        table=texts["table"],
        tablet=texts["tablet"],
        job=texts["job"],
        attempt=texts["attempt"],
        inputs=_paths(texts["inputs"]),
        request=texts.get("request") or None,
        purge=bytes.fromhex(texts["purge"]) if texts.get("purge") else None,
        outputs=None if outputs is None else _paths(outputs),
        rows=rows,
    )


def _paths(text: str) -> tuple[str, ...]:
    paths = json.loads(text)
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise ValueError(f"{text[:100]!r} is no list of paths")
    return tuple(paths)
