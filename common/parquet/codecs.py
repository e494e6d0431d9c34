"""The codecs of Parquet files, and the levels that each of them has."""

CODECS = ("zstd", "snappy", "lz4", "gzip", "brotli", "none")
LEVELS = {"zstd": (1, 22), "gzip": (1, 9), "brotli": (0, 11)}
_ALIASES = {"uncompressed": "none", "gz": "gzip"}


def codec_name(written: str) -> str | None:
    """Return a codec by the name that we have for it, None if there is no such codec."""
    name = _ALIASES.get(written.lower(), written.lower())
    return name if name in CODECS else None


def has_level(codec: str, level: int) -> bool:
    """Return whether a codec knows a level; one without levels takes any."""
    low, high = LEVELS.get(codec, (level, level))
    return low <= level <= high
