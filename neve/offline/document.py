"""The description of one tablet as JSON: files, what runs, groups. Read with care."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.config import parse_group
from common.errors import ConfigError, RequestError
from common.model.file import DataFile
from common.model.group import Group
from common.model.job import Kind
from common.settings import checked_groups
from common.spi.planner import RunningJob
from common.units import parse_size_bytes
from neve.offline.checks import (
    a_count,
    a_list,
    a_number,
    a_switch,
    a_text,
    an_object,
)

_FIELDS = frozenset({
    "table", "kind", "files", "candidates", "running", "groups", "compacted", "partial",
})  # fmt: skip
"""`compacted` and `partial` belong to `neve backlog`, which reads the same document."""
_FILE_COUNTS = {"rows": "rows", "tombstones": "tombstones"}
_FILE_TIMES = {
    "time_min": "time_min_s",
    "time_max": "time_max_s",
    "added_at": "added_at_s",
    "tombstones_since": "tombstones_since_s",
}
_LISTED_NAMES = {
    "size_bytes": "size",
    "added_at_s": "added_at",
    "time_min_s": "time_min",
    "time_max_s": "time_max",
}
"""Fields as `neve table files --json` names them."""
_LISTED_ONLY = frozenset({"tablet", "schema_id", "job", "request"})
"""Fields of that list that no planner looks at."""
_FILE_KEYS = ("key_min", "key_max", "version_min", "version_max")
_FILE_SWITCHES = ("clean", "open")
_FILE_FIELDS = frozenset({
    "path", "size", "live", "tags", "level",
    *_FILE_COUNTS, *_FILE_TIMES, *_FILE_KEYS, *_FILE_SWITCHES,
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletDocument:
    """One tablet as a user described it."""

    settings: Mapping[str, Any]
    kind: Kind
    files: Mapping[str, DataFile]
    candidates: tuple[DataFile, ...]
    running: tuple[RunningJob, ...]
    groups: tuple[Group, ...]


def read_document(document: object, tablet: str | None = None) -> TabletDocument:
    """Return what a JSON document describes.

    Args:
        document: As in `neve plan --files`. `candidates` left out or null: every file
            that is not open, also those of running jobs. A list stands for its `files`.
        tablet: Of files that name their tablet, only those of this one.

    Raises:
        RequestError: Names the place, the value and what was expected.
    """
    if isinstance(document, list):
        document = {"files": document}
    body = an_object(document, "the document", _FIELDS)
    files: dict[str, DataFile] = {}
    for number, entry in _of_one_tablet(a_list(body.get("files"), "files"), tablet):
        file = _file(entry, f"files[{number}]")
        if file.path in files:
            raise RequestError(f"files[{number}].path {file.path!r} is listed twice")
        files[file.path] = file
    listed = body.get("candidates")
    paths = [*files] if listed is None else a_list(listed, "candidates")
    candidates = _known(paths, files, "candidates")
    return TabletDocument(
        settings=an_object(body.get("table") or {}, "table"),
        kind=_kind(body.get("kind", Kind.SYSTEM.value), "kind"),
        files=files,
        candidates=tuple(file for file in candidates if not file.open),
        running=tuple(
            _running(entry, files, f"running[{number}]")
            for number, entry in enumerate(a_list(body.get("running") or [], "running"))
        ),
        groups=read_groups(body.get("groups")),
    )


def read_groups(written: object) -> tuple[Group, ...]:
    """Return groups, smallest first; the default group if none are given (null).

    Raises:
        RequestError: A field is unknown or missing, a name or size comes twice, a size is
            not positive, two have no limit, or the list is empty.
    """
    if written is None:
        return (Group(name="default"),)
    try:
        groups = tuple(
            parse_group(_renamed(entry), f"groups[{number}]")
            for number, entry in enumerate(a_list(written, "groups"))
        )
        for group in groups:
            if not group.name[0].isalpha():
                raise RequestError(f"group name {group.name!r} must begin with a letter")
        return checked_groups("offline", groups)
    except ConfigError as error:
        raise RequestError(str(error)) from error


def _renamed(entry: object) -> object:
    """Return a group with Accumulo's name of the size in ours, so that its lists can be pasted."""
    if isinstance(entry, Mapping) and "maxSize" in entry and "max_size" not in entry:
        return {("max_size" if name == "maxSize" else name): entry[name] for name in entry}
    return entry


def _of_one_tablet(entries: list[Any], tablet: str | None) -> list[tuple[int, Any]]:
    """Return files with their numbers, those of other tablets left out.

    Raises:
        RequestError: They are of several tablets and none was named, or of none of this name.
    """
    numbered = list(enumerate(entries))
    named = {
        entry["tablet"] for entry in entries if isinstance(entry, Mapping) and "tablet" in entry
    }
    if tablet is None and len(named) < 2:
        return numbered
    known = ", ".join(sorted(map(str, named))[:10]) or "none"
    if tablet is None:
        raise RequestError(
            f"files are of {len(named)} tablets, and a plan is of one: name it (--tablet); "
            f"there are: {known}"
        )
    if tablet not in named:
        raise RequestError(f"no file is of tablet {tablet!r}; there are: {known}")
    return [
        (number, entry)
        for number, entry in numbered
        if isinstance(entry, Mapping) and entry.get("tablet") == tablet
    ]


def _as_described(entry: object, where: str) -> object:
    """Return a file with the names of `neve table files --json` in those of a document."""
    if not isinstance(entry, Mapping):
        return entry
    body = {name: value for name, value in entry.items() if name not in _LISTED_ONLY}
    for listed, name in _LISTED_NAMES.items():
        if listed in body:
            if name in body:
                raise RequestError(f"{where} has {name} and {listed}, expected one of them")
            body[name] = body.pop(listed)
    return body


def _file(entry: object, where: str) -> DataFile:
    body = an_object(_as_described(entry, where), where, _FILE_FIELDS)
    path = a_text(body.get("path"), f"{where}.path")
    facts: dict[str, Any] = {"rows": 0}
    for name, value in body.items():
        if name in _FILE_COUNTS:
            facts[_FILE_COUNTS[name]] = a_count(value, f"{where}.{name}")
        elif name in _FILE_TIMES and value is not None:
            facts[_FILE_TIMES[name]] = a_number(value, f"{where}.{name}")
        elif name in _FILE_KEYS and value is not None:
            facts[name] = _key(value, f"{where}.{name}")
        elif name in _FILE_SWITCHES:
            facts[name] = a_switch(value, f"{where}.{name}")
    if body.get("live") is not None:
        facts["live_bytes"] = _size(body["live"], f"{where}.live")
    try:
        return DataFile(
            path=path, size_bytes=_size(body.get("size"), f"{where}.size"), tags=_tags(body, where),
            **facts,
        )  # fmt: skip
    except ValueError as error:
        raise RequestError(f"{where}: {error}") from error


def _size(value: Any, where: str) -> int:
    if value is None:
        raise RequestError(f"{where} is missing, expected bytes or a size such as 32MB")
    return parse_size_bytes(value, where)


def _tags(body: Mapping[str, Any], where: str) -> tuple[tuple[str, str], ...]:
    tags = {name: str(value) for name, value in an_object(body.get("tags") or {}, where).items()}
    if "level" in body:
        tags["level"] = str(a_count(body["level"], f"{where}.level"))
    return tuple(sorted(tags.items()))


def _key(value: object, where: str) -> bytes:
    """Return bytes that sort like the value: numbers among numbers, texts among texts."""
    if isinstance(value, str):
        return value.encode()
    number = a_number(value, where)
    if number != int(number) or not -(1 << 63) <= number < 1 << 63:
        raise RequestError(f"{where} is {value!r}, expected a text or a whole number of 64 bits")
    return (int(number) + (1 << 63)).to_bytes(8, "big")


def _kind(value: object, where: str) -> Kind:
    try:
        return Kind(a_text(value, where))
    except ValueError as error:
        raise RequestError(f"{where} is {value!r}, expected SYSTEM or USER") from error


def _running(entry: object, files: Mapping[str, DataFile], where: str) -> RunningJob:
    body = an_object(entry, where, {"kind", "files"})
    paths = a_list(body.get("files"), f"{where}.files")
    return RunningJob(
        kind=_kind(body.get("kind"), f"{where}.kind"),
        files=_known(paths, files, f"{where}.files"),
    )


def _known(paths: list[Any], files: Mapping[str, DataFile], where: str) -> tuple[DataFile, ...]:
    for number, path in enumerate(paths):
        if a_text(path, f"{where}[{number}]") not in files:
            raise RequestError(
                f"{where}[{number}] is {path!r}, expected the path of a file in files"
            )
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise RequestError(f"{where} names {twice!r} twice, expected once")
    return tuple(files[path] for path in paths)
