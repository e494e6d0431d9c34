"""`/live` and `/ready`: what Kubernetes asks the process of `neve serve`.

Plain HTTP of the standard library, in threads of its own: it answers while the watchdog waits.
"""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from common.errors import ConfigError

IDLE_MAX_S = 5.0
"""A caller that sends nothing for this time is hung up on."""


@dataclass(frozen=True, slots=True)
class Health:
    """What a probe is answered."""

    well: bool
    facts: Mapping[str, Any]


class Probes:
    """A server of probes, until it is closed."""

    def __init__(
        self, host: str, port: int, *, live: Callable[[], Health], ready: Callable[[], Health]
    ) -> None:
        """Listen at once.

        Args:
            host: Address to listen on.
            port: Port to listen on; 0: any free one.
            live: Whether the process does its work.
            ready: Whether what it watches answers.

        Raises:
            ConfigError: Somebody else listens there.
        """
        pages = {"/live": live, "/ready": ready}
        handler = type("ProbeHandler", (_Handler,), {"pages": pages})
        try:
            self._server = ThreadingHTTPServer((host, port), handler)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port} for probes: {error.strerror}; choose another"
                " --health-port"
            ) from error
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, daemon=True, name="probes"
        )
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Answers 200 if all is well, else 503; the body says why, as JSON."""

    pages: Mapping[str, Callable[[], Health]] = {}
    timeout = IDLE_MAX_S
    server_version = "neve"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a probe."""
        page = self.pages.get(self.path)
        if page is None:
            self._answer(
                404, {"error": f"path {self.path[:64]!r} does not exist, expected /live or /ready"}
            )
            return
        health = page()
        self._answer(200 if health.well else 503, health.facts)

    def _answer(self, status: int, facts: Mapping[str, Any]) -> None:
        body = json.dumps(facts).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Say nothing: probes come every few seconds."""
