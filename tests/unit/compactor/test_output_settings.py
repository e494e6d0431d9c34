"""How outputs are written: settings, then the configurer's answer, then the request's wish."""

from __future__ import annotations

import json
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from common import plugins
from common.errors import ConfigError, PluginError, RequestError, RewriteError
from common.model.file import DataFile
from common.model.job import Kind
from common.model.request import OutputSpec, Request
from common.spi.planner import OutputParameters
from compactor.rewrite.by_size import BySize
from compactor.rewrite.plan.inputs import OutputSettings, output_settings
from tests.support.assignments import a_table, an_assignment
from tests.support.tables_on_disk import settings

CASES = json.loads((Path(__file__).parents[2] / "data" / "accumulo_configurer.json").read_text())
BY_SIZE = {"threshold": "1KB", "codec": "gzip"}


def of_bytes(size_bytes: int) -> tuple[DataFile, ...]:
    half = DataFile(path="b.parquet", size_bytes=size_bytes // 2, rows=1)
    return (DataFile(path="a.parquet", size_bytes=size_bytes - half.size_bytes, rows=1), half)


def chosen(output: OutputSpec | None = None, size_bytes: int = 100, **table: Any) -> OutputSettings:
    request = None
    if output is not None:
        request = Request(id="request-1", table="table-1", output=output)
    return output_settings(
        an_assignment(
            of_bytes(size_bytes), table=a_table(settings=settings(**table)), request=request
        )
    )


@pytest.mark.parametrize("case", CASES["compression_configurer"])
def test_by_size_answers_as_accumulos_configurer(case: dict[str, Any]) -> None:
    options = {"threshold": case["threshold"], "codec": case["type"]}
    options = {name: value for name, value in options.items() if value is not None}
    if case.get("error"):
        with pytest.raises(RequestError, match="lacks the option codec"):
            BySize().check(options)
        return
    BySize().check(options)
    parameters = OutputParameters(
        table=a_table(settings=settings(configurer="by-size", configurer_options=options)),
        kind=Kind.SYSTEM,
        inputs=of_bytes(case["input_bytes"]),
    )
    wanted = OutputSpec(codec="gzip") if case["overrides"] else OutputSpec()
    assert BySize().configure(parameters) == wanted


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"codec": "gzip"}, "lacks the option threshold"),
        ({**BY_SIZE, "codec": "rar"}, "codec 'rar' is unknown, expected zstd"),
        ({**BY_SIZE, "threshold": "much"}, "threshold 'much' is not a size"),
        (
            {**BY_SIZE, "codec_level": "10"},
            "codec_level '10' is not a level of gzip, expected 1 to 9",
        ),
        ({**BY_SIZE, "tresholt": "1"}, "option 'tresholt' is unknown; did you mean 'threshold'"),
    ],
)
def test_by_size_refuses_options(options: dict[str, str], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        BySize().check(options)


def test_request_settings_override_configurer_and_table() -> None:
    table: dict[str, Any] = {"codec": "zstd", "codec_level": 5, "row_group_bytes": 9000}
    assert chosen(**table) == OutputSettings("zstd", 5, 9000)
    table |= {"configurer": "by-size", "configurer_options": BY_SIZE}
    assert chosen(size_bytes=1024, **table) == OutputSettings("zstd", 5, 9000)
    assert chosen(size_bytes=1025, **table) == OutputSettings("gzip", None, 9000)
    wish = OutputSpec(codec="brotli", codec_level=7, row_group_bytes=70)
    assert chosen(wish, size_bytes=1025, **table) == OutputSettings("brotli", 7, 70)
    assert chosen(OutputSpec(codec="ZSTD"), **table) == OutputSettings("zstd", 5, 9000)
    assert chosen(OutputSpec(codec="snappy"), **table) == OutputSettings("snappy", None, 9000)


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        (OutputSpec(codec="rar"), "request request-1 wants the codec 'rar', which is unknown"),
        (OutputSpec(codec="gzip", codec_level=10), "the level 10, which gzip does not have"),
        (OutputSpec(row_group_bytes=-1), "row groups of -1 bytes"),
    ],
)
def test_a_wish_that_cannot_be_met_fails_the_job(wish: OutputSpec, says: str) -> None:
    with pytest.raises(RewriteError, match=says):
        chosen(wish)


class Odd:
    """A configurer with a mind of its own."""

    def check(self, options: object) -> None: ...

    def configure(self, parameters: OutputParameters) -> OutputSpec:
        if parameters.input_bytes > 50:
            raise KeyError("lost")
        return OutputSpec(codec="rar")


def test_a_configurer_that_misbehaves_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("their_configurers")
    module.Odd = Odd  # type: ignore[attr-defined]  # made here
    monkeypatch.setitem(sys.modules, "their_configurers", module)
    points = [EntryPoint("odd", "their_configurers:Odd", plugins.CONFIGURERS.group)]
    monkeypatch.setattr(
        plugins, "installed_points", lambda group: EntryPoints(points).select(group=group)
    )
    with pytest.raises(PluginError, match="configurer odd failed: KeyError"):
        chosen(configurer="odd")
    with pytest.raises(PluginError, match=r"configurer odd failed: .*'rar', which is unknown"):
        chosen(configurer="odd", size_bytes=10)
    with pytest.raises(ConfigError, match="'even' is not installed; installed: by-size, odd"):
        chosen(configurer="even")
