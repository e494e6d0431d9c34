"""The engines that run in processes of their own, by name."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.rewrite import plain_engines, queries
from benchmarks.rewrite.datasets import Dataset
from benchmarks.rewrite.wanted import Form, Wanted


@dataclass(frozen=True, slots=True)
class Engine:
    """An alternative: its forms for a data set, and what goes before, unmeasured."""

    forms: Callable[[Dataset], Mapping[str, Form]]
    prepare: Form | None = None


def _loaded(library: str) -> Form:
    """Return what loads a library, so that no run pays for it."""

    def load(_: Wanted) -> None:
        importlib.import_module(library)

    return load


ENGINES: Mapping[str, Engine] = {
    "polars": Engine(queries.polars_forms, _loaded("polars")),
    "duckdb": Engine(queries.duckdb_forms, _loaded("duckdb")),
    "datafusion": Engine(queries.datafusion_forms, _loaded("datafusion")),
    "delta-rs": Engine(plain_engines.delta_forms, plain_engines.prepare_delta),
    "limit": Engine(plain_engines.limit_forms, plain_engines.prepare_limit),
    "cp": Engine(plain_engines.cp_forms),
}
