"""Computes the backlog of a tablet in a JSON file (`neve backlog`).

The document is that of `neve plan --files`, with two more fields: `compacted`, the input bytes that
are already rewritten, and `partial`, the outputs that are being written.
"""

from collections.abc import Mapping
from typing import Any

from common.documents import read_list, read_object
from common.errors import ConfigError, RequestError
from common.plugins import TRACKERS, load_tracker, request_errors
from common.spi.controller import PartialOutput, WorkUnderWay
from neve.offline import (
    COUNT,
    SIZE,
    TabletDocument,
    read_document,
    read_time,
)
from neve.setting_values import read_settings

DEFAULT_STRATEGY = "size-tiered"
_PARTIAL_FIELDS = frozenset({"bytes", "time_max", "level"})
_NOW = ("now", "now_s")


def backlog_offline(
    document: object,
    strategy: str | None = None,
    mode: str | None = None,
    overrides: Mapping[str, object] | None = None,
    tablet: str | None = None,
) -> dict[str, Any]:
    """Return how many bytes remain to be rewritten.

    Args:
        document: The tablet, as for `neve.offline.plan_offline`, with `compacted` (path → bytes)
            and `partial` (a list of `bytes`, `time_max`, `level`). The progress of running jobs is
            included.
        strategy: Name of the tracker; None: `size-tiered`.
        mode: `seed` or `interesting`, for trackers with tiers; None: `interesting`.
        overrides: Options and settings that override those in `table`; values may be texts.
        tablet: Use only files of this tablet, if there are files of several tablets.

    Returns:
        `{"backlog": bytes}`, a number of at least 0, possibly fractional.

    Raises:
        RequestError: The document, an option or the strategy's name is invalid.
        PluginError: The tracker cannot be loaded.
    """
    name = strategy or DEFAULT_STRATEGY
    described = read_document(document, tablet)
    body = document if isinstance(document, Mapping) else {}
    with request_errors(f"strategy {name!r} is unknown: "):
        plugin = load_tracker(name)
    known = plugin.option_names
    given = dict(overrides or {})
    if mode is not None:
        if "mode" not in known:
            raise RequestError(f"strategy {name!r} has no modes; leave --mode out")
        given["mode"] = mode
    now_s = _now_s(described, given)
    if now_s is not None and "now_s" in known:
        given["now_s"] = now_s
    written = _of_strategy(described.settings, known)
    settings, options = read_settings(written, known, given)
    try:
        tracker = plugin.tracker(settings, options)
    except ConfigError as error:
        # In this command, the caller is the operator.
        raise RequestError(str(error)) from error
    for file in described.files.values():
        tracker.add(file)
    return {"backlog": tracker.backlog_bytes(_work(described, body, now_s or 0.0))}


def _of_strategy(written: Mapping[str, object], known: frozenset[str]) -> dict[str, object]:
    """Drop the options of other strategies, so that one document works for all strategies."""
    others = frozenset[str]().union(*(load_tracker(each).option_names for each in TRACKERS.names()))
    return {
        name: value
        for name, value in written.items()
        if name not in _NOW and (name in known or name not in others)
    }


def _now_s(described: TabletDocument, given: dict[str, object]) -> float | None:
    """Remove the time from the options; fall back to the settings, then to the document."""
    written = [given.pop(name) for name in _NOW if name in given]
    written += [described.settings[name] for name in _NOW if name in described.settings]
    return read_time(written[0], "now") if written else described.now_s


def _work(described: TabletDocument, body: Mapping[Any, Any], now_s: float) -> WorkUnderWay:
    """Return the work in progress from the document's fields and its running jobs."""
    read: dict[str, int] = {}
    outputs: list[PartialOutput] = []
    for job in described.running:
        for path, size_bytes in job.read_bytes.items():
            read[path] = read.get(path, 0) + size_bytes
        if job.written_bytes:
            latest_s = max((file.time_max_s or 0.0 for file in job.files), default=0.0)
            outputs.append(PartialOutput(size_bytes=job.written_bytes, time_max_s=latest_s))
    for path, size in read_object(body.get("compacted") or {}, "compacted").items():
        if path not in described.files:
            raise RequestError(f"compacted names {path!r}, expected the path of a file in files")
        read[path] = read.get(path, 0) + SIZE.read(size, f"compacted.{path}")
    for number, entry in enumerate(read_list(body.get("partial") or [], "partial")):
        outputs.append(_partial(entry, f"partial[{number}]"))
    return WorkUnderWay(read_bytes=read, outputs=tuple(outputs), now_s=now_s)


def _partial(entry: object, where: str) -> PartialOutput:
    written = read_object(entry, where, _PARTIAL_FIELDS)
    return PartialOutput(
        size_bytes=SIZE.read(written.get("bytes"), f"{where}.bytes"),
        time_max_s=read_time(written.get("time_max") or 0, f"{where}.time_max"),
        level=COUNT.read(written.get("level") or 0, f"{where}.level"),
    )
