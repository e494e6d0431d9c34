"""Footers of files, as stitching sees them."""

from __future__ import annotations

from pathlib import Path

from common.parquet.location import Location, open_location
from compactor.rewrite.stitch.footer import Layout
from compactor.rewrite.stitch.sources import layout_of, opened_source
from compactor.rewrite.thrift.values import Struct


def read_file_layout(location: Location, path: str) -> Layout:
    with opened_source(location, path) as source:
        return layout_of(source)


def layout_of_file(path: Path) -> Layout:
    with opened_source(open_location(path.parent.as_uri()), path.name) as source:
        return layout_of(source)


def opened_struct(struct: Struct, number: int) -> Struct | None:
    field = struct.get(number)
    if field is None:
        return None
    assert isinstance(field.value, dict), field
    return field.value
