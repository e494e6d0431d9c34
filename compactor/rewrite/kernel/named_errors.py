"""Errors of libraries that read files, as ours: each says which file it was."""

import polars as pl
import pyarrow as pa

from common.errors import InputError, RequestError


class NamedErrors:
    """Whatever goes wrong while a file is read says which one it was."""

    def __init__(self, source: str) -> None:
        self._source = source

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RequestError):
            raise InputError(str(error)) from error
        broken = (
            pl.exceptions.PolarsError,
            pl.exceptions.PanicException,
            pa.ArrowException,
            OSError,
        )
        if isinstance(error, MemoryError):
            return  # Arrow's is both; nothing is said of the file by it.
        if isinstance(error, broken):
            raise InputError(f"{self._source} cannot be read, it is damaged: {error}") from error
