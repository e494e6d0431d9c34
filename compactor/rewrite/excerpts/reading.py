"""Reads columns of a few rows of a row group, and no other pages of it than theirs."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import InputError, NotStitchableError
from common.parquet.location import Location
from compactor.rewrite.excerpts.making import Column, file_of_pages, flat_columns
from compactor.rewrite.excerpts.pages import Pages, pages_of, walked
from compactor.rewrite.page_sums import PageError, check_pages
from compactor.rewrite.stitch.footer import Chunk, Layout
from compactor.rewrite.stitch.sources import Source, layout_of, opened_source
from compactor.rewrite.thrift.values import ThriftError


@dataclass(frozen=True, slots=True)
class Place:
    """Some rows of a file."""

    number: int
    """Of their row group."""
    skip: int
    """Rows of it that come before these."""
    rows: int
    """One at least."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A Parquet file of one column."""

    content: bytes
    skip: int
    """Rows of it that come before the wanted ones."""


class Excerpts:
    """One file, from which excerpts are taken. Threads may share it."""

    def __init__(self, location: Location, path: str) -> None:
        """Read nothing yet.

        Args:
            location: Of the file.
            path: Relative to it.
        """
        self._location, self._path = location, path
        self._layout: Layout | None = None
        self._columns: dict[str, Column] | None = None
        self._pages: dict[tuple[int, str], Pages] = {}

    def columns(self) -> frozenset[str]:
        """Return the columns of which excerpts can be taken.

        Raises:
            InputError: The file cannot be read.
            UnavailableError: The storage does not answer.
        """
        if self._columns is None:
            try:
                with opened_source(self._location, self._path) as source:
                    self._layout = layout_of(source)
                self._columns = flat_columns(self._layout)
            except (NotStitchableError, ThriftError):
                self._columns = {}
        return frozenset(self._columns)

    def take(self, place: Place, field: pa.Field) -> Excerpt:
        """Return the pages that hold some rows of one of `columns`.

        Args:
            place: The rows.
            field: The column as Arrow reads it.

        Raises:
            InputError: They cannot be read, or are not as they were written.
            UnavailableError: The storage does not answer.
        """
        with opened_source(self._location, self._path) as source:
            try:
                return self._taken(source, place, field)
            except (NotStitchableError, PageError) as error:
                name = f"file {self._path}, column {field.name}"
                raise InputError(f"{name} cannot be read, it is damaged: {error}") from error

    def _taken(self, source: Source, place: Place, field: pa.Field) -> Excerpt:
        """Return an excerpt; what an offset index tells is not the last word."""
        assert self._layout is not None, "whoever takes one has asked for the columns"
        assert self._columns is not None
        groups = self._layout.groups
        if place.number >= len(groups) or place.skip + place.rows > groups[place.number].rows:
            raise NotStitchableError("it has other row groups than it had")
        column, group = self._columns[field.name], groups[place.number]
        of = _Of(self._layout, group.chunks[column.leaf], column, field)
        pages = self._pages.get((place.number, field.name))
        pages = pages or pages_of(source, of.chunk, group.rows)
        try:
            found = _excerpt(source, of, place, pages)
        except (NotStitchableError, PageError):
            if not pages.told:
                raise
            pages = walked(source, of.chunk, group.rows)
            found = _excerpt(source, of, place, pages)
        self._pages[place.number, field.name] = pages
        return found


@dataclass(frozen=True, slots=True)
class _Of:
    """What an excerpt is of."""

    layout: Layout
    chunk: Chunk
    column: Column
    field: pa.Field


def _excerpt(source: Source, of: _Of, place: Place, pages: Pages) -> Excerpt:
    """Return an excerpt, if pages are where they should be.

    Raises:
        NotStitchableError: They are others.
        PageError: One is not as it was written.
        ReadError: They cannot be read.
    """
    span, held = pages.holding(place.skip, place.rows)
    read = (source.read(pages.dictionary), source.read(span))
    for stored, part in zip(read, (pages.dictionary, span), strict=True):
        check_pages(stored, part.start)
    content, rows = file_of_pages(of.layout, of.chunk, of.column, read, of.field)
    if rows != len(held):
        raise NotStitchableError(f"{rows} rows in pages of {len(held)}")
    return Excerpt(content, place.skip - held.start)


def arrow_column(excerpt: Excerpt, rows: int) -> pa.ChunkedArray:
    """Return the wanted rows of an excerpt as Arrow reads them."""
    with pq.ParquetFile(pa.BufferReader(excerpt.content), pre_buffer=False) as parquet:
        return parquet.read(use_threads=False).column(0).slice(excerpt.skip, rows)
