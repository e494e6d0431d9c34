"""Copies the bytes of pieces while others are looked at."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from common.errors import RewriteError, UnavailableError
from common.parquet.location import is_silence
from compactor.rewrite.stitch.looking import Looked
from compactor.rewrite.stitch.sources import ReadError, opened_source, require_unchanged
from compactor.rewrite.stitch.target import Target


class Copying:
    """Copies pieces in a thread of its own, one after another; at its end all are copied."""

    def __init__(self, target: Target, output: str) -> None:
        """Copy nothing yet.

        Args:
            target: Takes the bytes.
            output: Its path, for messages.
        """
        self._target, self._output = target, output
        self._thread = ThreadPoolExecutor(1, "copy")
        self._pending: deque[Future[None]] = deque()

    def __enter__(self) -> "Copying":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            while kind is None and self._pending:
                self._pending.popleft().result()
        finally:
            self._thread.shutdown(cancel_futures=True)

    def add(self, looked: Looked) -> None:
        """Copy a piece, behind those that were added before.

        Raises:
            InputError: This one, or one before, cannot be read or has changed.
            RewriteError: The output cannot be written.
            VerificationError: The output does not hold what was read.
        """
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()
        self._pending.append(self._thread.submit(self._copy, looked))

    def _copy(self, looked: Looked) -> None:
        with opened_source(looked.location, looked.piece.path) as source:
            require_unchanged(source, looked.layout)
            with output_faults(self._output):
                for span in looked.copies:
                    self._target.copy(source, span)
            require_unchanged(source, looked.layout)


@contextmanager
def output_faults(output: str) -> Iterator[None]:
    """Tell faults of the output from those of its sources."""
    try:
        yield
    except ReadError:
        raise
    except OSError as error:
        message = f"output {output} cannot be written: {error}"
        raise (UnavailableError if is_silence(error) else RewriteError)(message) from error
