"""Layouts of what belongs to tablets, their files aside (`codec_file`)."""

from collections.abc import Mapping
from typing import Any

from common.metadata.codec import (
    Layout,
    broken,
    one_of,
    pairs,
    raw,
    real,
    text,
    texts,
    unpack,
    whole,
)
from common.model.job import Kind
from common.model.tablet import (
    Analysis,
    Bounds,
    Operation,
    OperationKind,
    OperationStep,
    Record,
    Reservation,
    Selection,
)

BOUNDS = Layout(Bounds, raw("start"), raw("end", optional=False), text("partition", optional=True))
RESERVATION = Layout(
    Reservation,
    text("job"),
    one_of("kind", Kind),
    texts("inputs"),
    text("output_prefix"),
    whole("outputs_max"),
    text("group"),
    text("compactor"),
    real("since_s"),
    real("now_s"),
    text("request", optional=True),
    given=("attempt",),
)
SELECTION = Layout(
    Selection,
    text("request"),
    texts("files"),
    texts("results"),
    whole("completed_jobs"),
    real("since_s"),
)
OPERATION = Layout(
    Operation,
    one_of("kind", OperationKind),
    text("operation_id"),
    one_of("step", OperationStep),
    raw("at"),
    real("since_s"),
    text("reason"),
)


def unpack_running(where: str, stored: Mapping[bytes, bytes]) -> dict[str, Reservation]:
    """Return the reservations of a `running` hash."""
    names = {field.decode(errors="replace"): data for field, data in stored.items()}
    return {
        attempt: RESERVATION.unpack(f"{where} {attempt}", data, attempt=attempt)
        for attempt, data in names.items()
    }


# The record is a hash of short names, so that counts change without being read.
VERSION, FILES, BYTES, RUNNING, WAITING = "v", "f", "b", "r", "w"
SELECTED, OPERATION_FLAG, DONE, PURGED = "s", "o", "d", "p"
ANALYSIS, FAILURES, FAILURE, HEAT, SETTLED, SELECTOR = "a", "x", "e", "h", "m", "q"
ABANDONED = "n"
HALVED = "k"
SELECTOR_DUE = "t"
RECENT_ADDS = "l"

_NOTE = (
    one_of("analysis", Analysis),
    whole("analysis_version"),
    whole("analysis_settings"),
)
_MARKS = pairs("settled", float, bytes)
_NUMBERS = {
    b"v": "version",
    b"f": "files",
    b"b": "size_bytes",
    b"r": "running",
    b"w": "waiting",
    b"x": "failures",
}
_FLAGS = {b"s": "selected", b"o": "operation"}
_TEXTS = {b"e": "failure", b"q": "selector_hash"}


def unpack_record(where: str, stored: Mapping[bytes, bytes]) -> Record:
    """Return the record in a `record` hash.

    Raises:
        MetadataError: It is no record.
    """
    values: dict[str, Any] = {}
    try:
        for field, data in stored.items():
            if (name := _NUMBERS.get(field)) is not None:
                values[name] = int(data)
            elif (name := _FLAGS.get(field)) is not None:
                values[name] = data != b"0"
            elif (name := _TEXTS.get(field)) is not None:
                values[name] = data.decode()
            else:
                _unpack_remark(where, field, data, values)
        return Record(**values)
    except (ValueError, TypeError) as error:
        raise broken(where, f"is no record ({error})") from error


def unpack_recent(where: str, data: bytes | None) -> tuple[tuple[float, bytes], ...]:
    """Return the notes of recent adds in a record's field."""
    if data is None:
        return ()
    return tuple((float(until_s), bytes(version)) for until_s, version in unpack(where, data))


def is_bare(stored: Mapping[bytes, bytes]) -> bool:
    """Return whether a record says that a tablet has bounds, files and nothing else.

    True only of a record read in one MULTI with the rest: counts are exact then.
    """
    return bool(stored) and all(
        stored.get(field, b"0") == b"0" for field in (b"r", b"w", b"s", b"o", b"d", b"p")
    )


def _unpack_remark(where: str, field: bytes, data: bytes, values: dict[str, Any]) -> None:
    match field:
        case b"a":
            word, version, settings, *due = unpack(where, data)
            values["analysis"] = Analysis(word)
            values["analysis_version"], values["analysis_settings"] = int(version), int(settings)
            values["due_at_s"] = float(due[0]) if due else None
        case b"h" | b"n":
            values["read_heat" if field == b"h" else "abandoned_s"] = float(data)
        case b"m":
            assert _MARKS.from_plain is not None
            values["settled"] = _MARKS.from_plain(unpack(where, data))
        case b"l":
            values["recent_adds"] = unpack_recent(where, data)
        case b"k":
            values["halved_job"], number, *_ = unpack(where, data)
            values["halvings"] = int(number)
        case b"t":
            values["selector_due_s"] = float(data) if data else None
        case _:
            # `d` and `p`, for which only `is_bare` asks; or a newer release has written it. It
            # stays as it is: the fields of a record are written one by one.
            pass
