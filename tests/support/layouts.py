"""Footers of files, as stitching sees them."""

from __future__ import annotations

from pathlib import Path

from common.parquet.location import Location, open_location
from compactor.rewrite.parquet_bytes.footer import FooterLayout, Struct
from compactor.rewrite.parquet_bytes.sources import open_source, read_footer_of


def read_file_layout(location: Location, path: str) -> FooterLayout:
    with open_source(location, path) as source:
        return read_footer_of(source)


def layout_of_file(path: Path) -> FooterLayout:
    with open_source(open_location(path.parent.as_uri()), path.name) as source:
        return read_footer_of(source)


def opened_struct(struct: Struct, number: int) -> Struct | None:
    field = struct.get(number)
    if field is None:
        return None
    assert isinstance(field.value, dict), field
    return field.value
