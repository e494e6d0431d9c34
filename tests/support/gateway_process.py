"""A gateway in a process of its own over a real Redis, which a test may kill: URL PORT."""

from __future__ import annotations

import sys
import threading

from common.metadata.redis import connect
from common.settings import StoreSettings
from tests.support.gateway import serving

if __name__ == "__main__":
    _, url, port = sys.argv
    with serving(connect(StoreSettings(url=url)), port=int(port)) as gateway:
        print(gateway.url, flush=True)
        threading.Event().wait()
