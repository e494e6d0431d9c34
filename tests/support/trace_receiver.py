"""A receiver of OTLP over HTTP, which keeps every span that it is sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """A span as it arrived. Times in nanoseconds since the epoch."""

    name: str
    trace: bytes
    id: bytes
    parent: bytes
    begin_ns: int
    end_ns: int
    part: str
    """The part of the service that sent it."""
    attributes: dict[str, str | int] = field(default_factory=dict, compare=False)


class Receiver:
    """What has arrived so far."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}/v1/traces"
        self.spans: list[Span] = []
        self.calls = 0

    def take(self, path: str, body: bytes) -> None:
        assert path == "/v1/traces", path
        self.calls += 1
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = _plain(resource.resource.attributes)
            assert about["service.name"] == "neve", about
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        Span(
                            name=span.name,
                            trace=span.trace_id,
                            id=span.span_id,
                            parent=span.parent_span_id,
                            begin_ns=span.start_time_unix_nano,
                            end_ns=span.end_time_unix_nano,
                            part=str(about["neve.part"]),
                            attributes=_plain(span.attributes),
                        )
                    )


def _plain(attributes: object) -> dict[str, str | int]:
    return {
        attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value"))
        for attribute in attributes  # type: ignore[attr-defined]  # protobuf's repeated field
    }


@contextmanager
def trace_receiver() -> Iterator[Receiver]:
    """Listen on a free port of the loopback for the length of a block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.take(self.path, body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_values: object) -> None:
            pass  # The test's output is about something else.

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(server.server_port)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
