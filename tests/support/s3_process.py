"""moto's S3 server, with a bucket whose clock is four days behind.

Its files are old as soon as they are written. No client can tell a store when it wrote a file.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

AGED, AGED_BY = "aged", timedelta(days=4)


def serve(arguments: list[str]) -> None:
    """Serve until the process is terminated."""
    from moto import server
    from moto.s3.models import FakeKey

    made = FakeKey.__init__

    def age(key: Any, *values: Any, **more: Any) -> None:
        made(key, *values, **more)
        if key.bucket_name == AGED:
            key.last_modified -= AGED_BY

    FakeKey.__init__ = age  # type: ignore[method-assign]
    server.main(arguments)


if __name__ == "__main__":
    serve(sys.argv[1:])
