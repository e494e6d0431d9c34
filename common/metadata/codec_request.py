"""The layout of a request, and its place in the order of requests.

A request is a hash of two fields: its state, which changes and is often all that is
asked for, and everything else.
"""

from collections.abc import Mapping
from typing import Any

from common.errors import MetadataError
from common.metadata.codec import Layout, Slot, broken, flag, one_of, raw, real, text, whole
from common.model.request import (
    KeyRange,
    OutputSpec,
    Request,
    RequestState,
    SelectorSpec,
    TransformKind,
    TransformSpec,
)

# Fields of the hash `neve:{t}:request:<id>`.
STATE, VALUE = "state", "value"


def _options(name: str) -> Slot:
    def from_plain(value: dict[Any, Any]) -> dict[str, str]:
        if any(type(word) is not str for pair in value.items() for word in pair):
            raise ValueError(f"{name} are no texts")
        return value

    return Slot(name, (dict,), dict, from_plain)


def _nested(name: str, layout: Layout[Any]) -> Slot:
    def from_plain(row: object) -> Any:
        try:
            return layout.made(name, row)
        except MetadataError as error:
            raise ValueError(str(error)) from error

    return Slot(name, (tuple,), lambda value: tuple(layout.row(value)), from_plain)


_RANGE = Layout(KeyRange, raw("start"), raw("until"))
_SELECTOR = Layout(SelectorSpec, _options("options"), text("name"))
_TRANSFORM = Layout(
    TransformSpec, _options("options"), one_of("kind", TransformKind), text("text"), text("name")
)
_OUTPUT = Layout(
    OutputSpec,
    text("codec", optional=True),
    whole("codec_level", optional=True),
    whole("row_group_bytes", optional=True),
)


def _ranges(name: str) -> Slot:
    one = _nested(name, _RANGE)
    assert one.to_plain is not None
    assert one.from_plain is not None
    to_plain, from_plain = one.to_plain, one.from_plain
    return Slot(
        name,
        (tuple,),
        lambda value: tuple(map(to_plain, value)),
        lambda rows: tuple(map(from_plain, rows)),
    )


REQUEST = Layout(
    Request,
    _nested("selector", _SELECTOR),
    _nested("transform", _TRANSFORM),
    _nested("output", _OUTPUT),
    _options("hints"),
    real("submitted_at_s"),
    _nested("range", _RANGE),
    whole("boost"),
    real("deadline_s", optional=True),
    flag("automatic"),
    real("ended_at_s", optional=True),
    text("cause"),
    flag("fails"),
    _ranges("cancelled_ranges"),
    given=("id", "table", "state"),
)


def request_fields(request: Request) -> dict[str, bytes | str]:
    """Return the fields of the hash that holds a request."""
    return {STATE: request.state.value, VALUE: REQUEST.pack(request)}


def unpack_request(
    where: str, table: str, request: str, stored: Mapping[bytes, bytes]
) -> Request | None:
    """Return the request in a `request` hash, or None if the hash is empty.

    Raises:
        MetadataError: It is no request.
    """
    if not stored:
        return None
    try:
        state, value = RequestState(stored[b"state"].decode()), stored[b"value"]
    except (KeyError, ValueError) as error:
        raise broken(where, f"is no request ({error})") from error
    return REQUEST.unpack(where, value, id=request, table=table, state=state)


def place(request: Request) -> bytes:
    """Return a request's member in the sorted sets of requests: by time, then by id."""
    return b"%020d:%s" % (int(request.submitted_at_s * 1_000_000), request.id.encode())


def submitted_at_s(member: bytes) -> float:
    """Return when the request at a place was submitted."""
    return int(member.partition(b":")[0]) / 1_000_000


def request_at(member: bytes) -> str:
    """Return the id of the request at a place."""
    return member.partition(b":")[2].decode()
