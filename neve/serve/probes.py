"""`/live` and `/ready`: the Kubernetes probes of the `neve serve` process.

Plain HTTP of the standard library, in its own threads, so that probes are answered while the
watchdog waits.
"""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from common.errors import ConfigError

IDLE_MAX_S = 5.0
"""A client that sends nothing for this time is disconnected."""


@dataclass(frozen=True, slots=True)
class Health:
    """Answer to a probe."""

    well: bool
    facts: Mapping[str, Any]


class Probes:
    """HTTP server for the probes, until it is closed."""

    def __init__(
        self, host: str, port: int, *, live: Callable[[], Health], ready: Callable[[], Health]
    ) -> None:
        """Start listening.

        Args:
            host: Address to listen on.
            port: Port to listen on; 0: any free port.
            live: Returns whether the process makes progress.
            ready: Returns whether the watched actors answer.

        Raises:
            ConfigError: The address cannot be used.
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
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Answers 200 if healthy, else 503; the JSON body holds the reasons."""

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
        """Log nothing, because probes arrive every few seconds."""
