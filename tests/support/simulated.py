"""Specifications for tests of the simulator, small ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neve.simulate.sections import merged_documents
from neve.simulate.specification import Specification, read_specifications
from neve.simulate.world import World

SMALL: Mapping[str, Any] = {
    "simulation": {"days": 0.1, "seed": 1},
    "table": [
        {
            "name": "events",
            "tablets": 5,
            "row_bytes": 100,
            "arrivals": {"every": "2m", "size": "1MB"},
        }
    ],
    "cluster": {
        "group": [{"name": "default", "slots": 2, "compactors": 1, "slot_bytes_s": "20MB"}]
    },
}


def document(
    table: Mapping[str, Any] | None = None, **sections: Mapping[str, Any] | list[Any]
) -> dict[str, Any]:
    """Return the small document with other values in its table and its sections."""
    changed = merged_documents(SMALL["table"][0], table or {})
    if {"files_per_s", "recorded"} & (table or {}).get("arrivals", {}).keys():
        changed["arrivals"] = (table or {})["arrivals"]
    return merged_documents({**SMALL, "table": [changed]}, sections)


def read(written: Mapping[str, Any], files: Mapping[str, Any] | None = None) -> Specification:
    """Return the only specification of a document."""
    (found,) = read_specifications(written, (files or {}).__getitem__)
    return found


def world(written: Mapping[str, Any], files: Mapping[str, Any] | None = None) -> World:
    """Return a world at its beginning."""
    return World(read(written, files))
