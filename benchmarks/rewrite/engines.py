"""The engines that run in processes of their own, by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.rewrite import plain_engines, queries
from benchmarks.rewrite.datasets import Dataset
from benchmarks.rewrite.wanted import Form


@dataclass(frozen=True, slots=True)
class Engine:
    """An alternative: its forms for a data set, and what goes before, unmeasured."""

    forms: Callable[[Dataset], Mapping[str, Form]]
    prepare: Form | None = None


ENGINES: Mapping[str, Engine] = {
    "polars": Engine(queries.polars_forms),
    "duckdb": Engine(queries.duckdb_forms),
    "datafusion": Engine(queries.datafusion_forms),
    "delta-rs": Engine(plain_engines.delta_forms, plain_engines.prepare_delta),
    "limit": Engine(plain_engines.limit_forms, plain_engines.prepare_limit),
    "cp": Engine(plain_engines.cp_forms),
    "cp+sync": Engine(plain_engines.durable_cp_forms),
}
