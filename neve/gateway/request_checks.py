"""Validation of a user's request before it is stored.

All errors are found here, and not by the first compactor that runs a job of the request: the
module parses expressions against the table, loads plug-ins, lets them check their options, and
applies limits.
"""

import json
from collections.abc import Mapping

from common.errors import RequestError
from common.expressions.clauses import parse_transform
from common.model.fields import as_plain
from common.model.job import BOOST_MAX
from common.model.request import (
    KeyRange,
    OutputSpec,
    Request,
    SelectorSpec,
    TransformKind,
    TransformSpec,
)
from common.model.table import Table
from common.parquet.file_inspection import CODECS, LEVELS, codec_name, has_level
from common.plugins import TRANSFORMS, load_requested, load_selector, request_errors
from common.spi.planner import Selector
from common.units import parse_duration_s, parse_size_bytes
from neve.api import NewRequest, Output, Plugin
from neve.gateway.key_views import key_range
from neve.gateway.rows.calls import request_id

DEADLINE_MIN_S, DEADLINE_MAX_S = 1.0, 366 * 86_400.0
REQUEST_BYTES_MAX = 32 * 1024
"""Limit of a request as JSON. A table has at most 1,000 open requests, or 32 MiB of them."""
ROW_GROUP_BYTES_MIN, ROW_GROUP_BYTES_MAX = 64 * 1024, 1024**3


def checked_request(table: Table, body: NewRequest, call: str, now_s: float) -> Request:
    """Validate the body of a user's request, and return the request.

    Args:
        table: Table of the request.
        body: Body from the user.
        call: Id of the call.
        now_s: Time of the store, from which the deadline counts.

    Raises:
        RequestError: A value is invalid; the message names the value and what is expected.
    """
    keys = key_range(table, body.start, body.end)
    spec = _transform(body)
    parse_transform(spec, table, keys)
    if spec.kind is not TransformKind.NONE and keys != KeyRange():
        _check_order(table)
    deadline_s = _deadline_s(body.deadline)
    request = Request(
        id=request_id(table, call),
        table=table.id,
        range=keys,
        selector=_selector(body.selector),
        transform=spec,
        output=_output(table, body.output or Output()),
        hints=_hints(body.hints),
        boost=_boost(body.boost),
        deadline_s=None if deadline_s is None else now_s + deadline_s,
    )
    if (size_bytes := request_bytes(request)) > REQUEST_BYTES_MAX:
        raise RequestError(
            f"the request has {size_bytes} bytes, expected at most {REQUEST_BYTES_MAX}:"
            " shorten its options, hints or expression"
        )
    return request


def request_bytes(request: Request) -> int:
    """Return the size of a request as JSON in UTF-8."""
    text = json.dumps(as_plain(request), default=str, ensure_ascii=False)
    return len(text.encode("utf-8", "surrogatepass"))


def load_request_selector(spec: SelectorSpec) -> Selector:
    """Load a selector, and let it check its options.

    Raises:
        RequestError: The selector is not installed, or rejects an option.
    """
    return load_requested("selector", spec.name, spec.options, load_selector)


def _check_order(table: Table) -> None:
    """Reject a transform of a range if partition values do not define a range of keys.

    Raises:
        RequestError: The table has partitions by other columns than the first of its key.
    """
    if table.partition_by != table.key[: len(table.partition_by)]:
        raise RequestError(
            f"table {table.name!r} has partitions by {', '.join(table.partition_by)}, which are "
            f"not the first columns of its key ({', '.join(table.key)}): "
            "a transform of a range is not possible there, expected no range"
        )


def _selector(plugin: Plugin | None) -> SelectorSpec:
    if plugin is None:
        return SelectorSpec()
    spec = SelectorSpec(name=plugin.name, options=dict(plugin.options))
    load_request_selector(spec)
    return spec


def _transform(body: NewRequest) -> TransformSpec:
    given = {
        "delete_where": body.delete_where,
        "set": body.set,
        "transform": body.transform,
    }
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise RequestError(f"{' and '.join(named)} are given, expected at most one of them")
    if body.delete_where is not None:
        return TransformSpec(kind=TransformKind.DELETE_WHERE, text=body.delete_where)
    if body.set is not None:
        return TransformSpec(kind=TransformKind.SET, text=body.set)
    if body.transform is None:
        return TransformSpec()
    name, options = body.transform.name, dict(body.transform.options)
    with request_errors():
        TRANSFORMS.require_installed(name)
    return TransformSpec(kind=TransformKind.PLUGIN, name=name, options=options)


def _output(table: Table, output: Output) -> OutputSpec:
    codec = None if output.codec is None else codec_name(output.codec)
    if output.codec is not None and codec is None:
        raise RequestError(
            f"codec {output.codec!r} is unknown, expected one of {', '.join(CODECS)}"
        )
    chosen = codec or table.settings.codec
    if output.codec_level is not None and not has_level(chosen, output.codec_level):
        low, high = LEVELS[chosen]
        raise RequestError(
            f"codec_level {output.codec_level} is not one of {chosen}, expected {low} to {high}"
        )
    return OutputSpec(
        codec=codec,
        codec_level=output.codec_level,
        row_group_bytes=_row_group_bytes(output.row_group_bytes),
    )


def _row_group_bytes(size: int | str | None) -> int | None:
    if size is None:
        return None
    size_bytes = parse_size_bytes(size, "row_group_bytes")
    if not ROW_GROUP_BYTES_MIN <= size_bytes <= ROW_GROUP_BYTES_MAX:
        raise RequestError(f"row_group_bytes {size!r} is out of range, expected 64 KiB to 1 GiB")
    return size_bytes


def _hints(hints: Mapping[str, str]) -> dict[str, str]:
    if "" in hints:
        raise RequestError("a hint has no name, expected one")
    return dict(hints)


def _boost(boost: int) -> int:
    if abs(boost) > BOOST_MAX:
        raise RequestError(f"boost {boost} is out of range, expected -{BOOST_MAX} to {BOOST_MAX}")
    return boost


def _deadline_s(deadline: float | str | None) -> float | None:
    if deadline is None:
        return None
    deadline_s = parse_duration_s(deadline, "deadline")
    if not DEADLINE_MIN_S <= deadline_s <= DEADLINE_MAX_S:
        raise RequestError(f"deadline {deadline!r} is out of range, expected 1s to 366d")
    return deadline_s
