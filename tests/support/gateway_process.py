"""A gateway in a process of its own over a real Redis, which a test may kill: URL PORT."""

from __future__ import annotations

import sys
import threading

from common.metadata.redis import connect
from common.runtime import (
    ignore_what_is_loaded,
    share_freed_memory,
    shorten_thread_switches,
)
from common.settings import StoreSettings
from tests.support.gateway import serving

if __name__ == "__main__":
    _, url, port = sys.argv
    share_freed_memory()  # As the actor does.
    shorten_thread_switches()
    with serving(connect(StoreSettings(url=url)), port=int(port)) as gateway:
        ignore_what_is_loaded()
        print(gateway.url, flush=True)
        threading.Event().wait()
