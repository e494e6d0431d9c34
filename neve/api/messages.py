"""Common definitions: limits of bodies and series, content types, compatibility of releases.

The classes of this package are sent as JSON between gateway and client, and as pickles between
coordinator and gateway. Sizes are in bytes, times in seconds since the epoch. A tablet is
identified by its end: hex, or `last`. Keys are human-readable texts that all `start`, `end` and
`splits` parameters accept.
"""

from collections.abc import Iterable
from dataclasses import MISSING, Field, dataclass, fields
from typing import Annotated, Any, TypeVar

T = TypeVar("T")

# --------------------------------------------------------- Bodies of requests and types of content

STRICT = {"extra": "forbid"}
"""A body with an unknown field is refused. The gateway reads this."""


@dataclass(frozen=True, slots=True)
class MaxLength:
    """Bound on a field of a request: characters of a text, or entries of a list or mapping."""

    count: int

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Return the schema that checks the bound and stops at the first error of a list."""
        schema = handler(source)
        schema["max_length"] = self.count
        if schema["type"] in {"list", "tuple"}:
            schema["fail_fast"] = True
        return schema


PATHS_MAX = 10_000
COLUMNS_MAX = 10_000
SPLITS_MAX = 100_000
ShortText = Annotated[str, MaxLength(4096)]
"""A name, a path, or a key as text."""
LongText = Annotated[str, MaxLength(64 * 1024)]
"""An expression, or the type of a column."""
Names = Annotated[tuple[ShortText, ...], MaxLength(1000)]
"""Names of columns or tables."""
SettingValues = Annotated[dict[ShortText, Any], MaxLength(1000)]
CALL_HEADER = "Neve-Call"
"""Header with the id of a call. A repeated call counts once."""
PROBLEM = "application/problem+json"
LINES = "application/x-ndjson"
ARROW_STREAM = "application/vnd.apache.arrow.stream"
ROWS_BYTES_MAX = 4 * 1024**2
"""Largest body of a call that buffers rows."""
ARCHIVE = "application/vnd.neve.archive"
"""Content type of an archive: the body of a restore."""


# ------------------------------------------------------------------------ Limits of recorded series

SERIES_STEP_S = 5.0
SERIES_SPAN_S = 3600.0
"""Longest span that has steps of `SERIES_STEP_S`."""
SERIES_MINUTE_S = 60.0
SERIES_SPAN_MAX_S = 24 * 3600.0
"""Longest span; it has steps of `SERIES_MINUTE_S`."""
SERIES_TABLES_MAX = 100
"""Most tables in one answer."""


# ------------------------------------------------------------------------------------------ Metrics


@dataclass(frozen=True, slots=True)
class Measured:
    """Marks a field of `Status` or `Group` that the gateway also exports as a metric."""

    metric: str
    help: str

    @property
    def kind(self) -> str:
        """The metric's kind for Prometheus."""
        return "counter" if self.metric.endswith("_total") else "gauge"


# ----------------------------------------------------------------- Pickles of neighbouring releases


def readable_across_releases(kind: type[T]) -> type[T]:
    """Make a slotted dataclass readable from pickles of the previous and the next release.

    Such a pickle is a list of values in the order of the fields. Without this decorator, a field
    that the sender does not know has no value, and reading it fails. With it, the field has its
    default. Values after the last known field are dropped, also by releases without the decorator.

    Therefore a new field must be the last one and have a default, and no field may be removed or
    moved. If the previous release reads the message, that release must know the type of the field.
    A class whose fields have moved lists them in `PICKLED`, in the order of its pickles. Inherited
    fields that it does not list follow in their order.
    """
    if hasattr(kind, "PICKLED"):
        kind.__getstate__ = _state  # type: ignore[method-assign, assignment]  # pickle calls it
    kind.__setstate__ = restore_fields  # type: ignore[attr-defined]  # pickle calls it
    return kind


def restore_fields(value: Any, state: list[Any]) -> None:
    """Set the fields of a value that pickle has created.

    Raises:
        TypeError: A field without a default is not in the pickle.
    """
    sent = dict(zip(_pickled(value), state, strict=False))
    for field in fields(value):
        given = sent[field.name] if field.name in sent else _default(value, field)
        object.__setattr__(value, field.name, given)


def _state(value: Any) -> list[Any]:
    return [getattr(value, name) for name in _pickled(value)]


def _pickled(value: Any) -> Iterable[str]:
    """Return the names of the fields in the order of pickles."""
    listed = getattr(value, "PICKLED", ())
    return [*listed, *(field.name for field in fields(value) if field.name not in listed)]


def _default(value: Any, missing: Field[Any]) -> Any:
    if missing.default is not MISSING:
        return missing.default
    if missing.default_factory is not MISSING:
        return missing.default_factory()
    raise TypeError(
        f"{type(value).__name__} of another release has no {missing.name}, which has no default"
    )
