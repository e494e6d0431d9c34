"""The configurer `by-size`: jobs above a size threshold use another codec."""

from collections.abc import Mapping
from dataclasses import dataclass

from common.documents import unknown
from common.errors import RequestError
from common.model.request import OutputSpec
from common.parquet.file_inspection import (
    CODECS,
    LEVELS,
    codec_name,
    has_level,
)
from common.spi.planner import OutputParameters
from common.units import CHARS_MAX, parse_size_bytes, shown, whole_number

OPTIONS = ("threshold", "codec", "codec_level")


@dataclass(frozen=True, slots=True)
class _Options:
    threshold_bytes: int
    codec: str
    codec_level: int | None


class BySize:
    """Slow, dense codecs for large files that stay, quick ones for small files that do not.

    Options: `threshold`, a size; `codec`; optionally its `codec_level`.
    """

    def check(self, options: Mapping[str, str]) -> None:
        """Refuse missing, unknown or wrong options.

        Raises:
            RequestError: Names the option and what was expected.
        """
        _parsed(options)

    def configure(self, parameters: OutputParameters) -> OutputSpec:
        """Return the other codec if the total size of the inputs is above the threshold."""
        wanted = _parsed(parameters.table.settings.configurer_options)
        if parameters.input_bytes <= wanted.threshold_bytes:
            return OutputSpec()
        return OutputSpec(codec=wanted.codec, codec_level=wanted.codec_level)


def _parsed(options: Mapping[str, str]) -> _Options:
    for name in sorted(set(options).difference(OPTIONS)):
        raise unknown(f"configurer by-size: option {shown(name)}", name, OPTIONS)
    for name in ("threshold", "codec"):
        if not options.get(name):
            raise RequestError(f"configurer by-size lacks the option {name}")
    codec = codec_name(options["codec"])
    if codec is None:
        expected = ", ".join(CODECS)
        raise RequestError(
            f"configurer by-size: codec {options['codec']!r} is unknown, expected {expected}"
        )
    threshold_bytes = parse_size_bytes(options["threshold"], "configurer by-size: threshold")
    return _Options(threshold_bytes, codec, _level(options.get("codec_level"), codec))


def _level(written: str | None, codec: str) -> int | None:
    if written is None:
        return None
    level = whole_number(written)
    if level is None or not has_level(codec, level):
        low, high = LEVELS.get(codec, (0, 0))
        raise RequestError(
            f"configurer by-size: codec_level {written[:CHARS_MAX]!r} is not a level of {codec}, "
            f"expected {low} to {high}"
        )
    return level
