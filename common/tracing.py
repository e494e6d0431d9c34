"""Spans of OpenTelemetry: one trace for each attempt, from the change of a tablet to its commit.

Off by default. Spans are created when their end is known, from times that a shell has recorded, so
no span is held open. A separate thread sends them. While the endpoint does not accept spans, a
bounded queue fills up and further spans are dropped; callers never wait.

A trace's ids are derived from the attempt's id. Therefore every process that has the attempt id
computes the same trace ids, and a restarted coordinator still ends the right span.
"""

import importlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.errors import ConfigError
from common.primitives import digest
from common.settings import TraceSettings

QUEUE_MAX = 2048
"""Spans that wait to be sent; further ones are dropped."""
SEND_INTERVAL_S = 1.0
SEND_MAX_S = 5.0
"""Longest time for one call of the endpoint, including retries."""
TRACE_DIGITS, SPAN_DIGITS = 32, 16
ATTEMPT = "attempt"
"""Name of an attempt's own span, the parent of all other spans."""
EXTRA = "neve[trace]"


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The position of spans in an attempt's trace, in the terms of W3C Trace Context."""

    trace: int
    span: int

    @classmethod
    def of_attempt(cls, attempt: str) -> "TraceContext":
        """Return the trace of an attempt, and the id of its span.

        Args:
            attempt: Random id of the attempt.
        """
        whole = digest(["trace", attempt], TRACE_DIGITS + SPAN_DIGITS)
        return cls(int(whole[:TRACE_DIGITS], 16), int(whole[TRACE_DIGITS:], 16))

    @classmethod
    def parse(cls, text: str) -> "TraceContext | None":
        """Return the context of a message; None: the attempt is not traced."""
        parts = text.split("-")
        if len(parts) != 4:
            return None
        try:
            return cls(int(parts[1], 16), int(parts[2], 16))
        except ValueError:
            return None

    def child(self, name: str) -> "TraceContext":
        """Return the context of a child span; its name must be unique in the trace."""
        return TraceContext(self.trace, int(digest([self.text, name], SPAN_DIGITS), 16))

    @property
    def text(self) -> str:
        """The context as a sampled `traceparent`."""
        return f"00-{self.trace:032x}-{self.span:016x}-01"


class Spans:
    """Destination of spans; this one drops them: tracing is off. No method blocks or fails."""

    def begin(self, attempt: str) -> str:
        """Return the context of an attempt for messages; empty: the attempt is not traced."""
        return ""

    def emit(
        self,
        context: str,
        name: str,
        times_s: tuple[float, float],
        attributes: Mapping[str, str | int] | None = None,
    ) -> None:
        """Send a span.

        Args:
            context: Context from a message; empty: nothing is sent.
            name: `attempt` for the attempt's own span, any other name for a child span.
            times_s: Begin and end, in seconds since the epoch.
            attributes: Attributes of the span.
        """


class OtlpSpans(Spans):
    """Sends spans to an OTLP/HTTP endpoint from a separate thread."""

    def __init__(self, settings: TraceSettings, part: str) -> None:
        """Start the thread.

        Args:
            settings: Trace settings with an endpoint.
            part: The part of the service that this process runs.

        Raises:
            ConfigError: The packages that send spans are not installed.
        """
        try:
            self._api = importlib.import_module("opentelemetry.trace")
            self._sdk = importlib.import_module("opentelemetry.sdk.trace")
            sampling = importlib.import_module("opentelemetry.sdk.trace.sampling")
            resources = importlib.import_module("opentelemetry.sdk.resources")
            export = importlib.import_module("opentelemetry.sdk.trace.export")
            otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"trace.endpoint is set, but {error.name} is not installed: install {EXTRA}"
            ) from error
        # The exporter logs each failed call, but an endpoint may be away for days.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._sampler = sampling.TraceIdRatioBased(settings.sample_ratio)
        self._sampled = sampling.Decision.RECORD_AND_SAMPLE
        self._resource = resources.Resource.create({"service.name": "neve", "neve.part": part})
        self._processor = export.BatchSpanProcessor(
            otlp.OTLPSpanExporter(endpoint=settings.endpoint, timeout=SEND_MAX_S),
            max_queue_size=QUEUE_MAX,
            schedule_delay_millis=1000 * SEND_INTERVAL_S,
        )

    def begin(self, attempt: str) -> str:
        """Return the context of an attempt for messages; empty: the attempt is not sampled."""
        context = TraceContext.of_attempt(attempt)
        drawn = self._sampler.should_sample(None, context.trace, ATTEMPT).decision
        return context.text if drawn is self._sampled else ""

    def emit(
        self,
        context: str,
        name: str,
        times_s: tuple[float, float],
        attributes: Mapping[str, str | int] | None = None,
    ) -> None:
        """Queue a span; if the queue is full, the span is dropped."""
        root = TraceContext.parse(context)
        if root is None:
            return
        span_context = root if name == ATTEMPT else root.child(name)
        began_ns, ended_ns = (int(1e9 * time_s) for time_s in times_s)
        self._processor.on_end(
            self._sdk.ReadableSpan(
                name=name,
                context=self._span_context(span_context),
                parent=None if name == ATTEMPT else self._span_context(root),
                resource=self._resource,
                attributes=attributes,
                start_time=began_ns,
                end_time=max(began_ns, ended_ns),
            )
        )

    def _span_context(self, context: TraceContext) -> Any:
        flags = self._api.TraceFlags(self._api.TraceFlags.SAMPLED)
        return self._api.SpanContext(
            context.trace, context.span, is_remote=False, trace_flags=flags
        )


def spans_of(settings: TraceSettings, part: str) -> Spans:
    """Return the destination of a part's spans.

    Raises:
        ConfigError: Traces are on, but the packages that send spans are not installed.
    """
    return OtlpSpans(settings, part) if settings.endpoint else Spans()
