"""Spans of OpenTelemetry: one trace for each attempt, from the change of a tablet to its commit.

Off by default. Spans are made when their end is known, with the times that a shell has noted, so
nothing is held open. They leave the process in a thread of their own. While nobody takes them, a
bounded queue keeps the newest ones out, and nothing waits.

A trace's ids are derived from the attempt's id. Therefore every process that knows the attempt
finds the same ones, and a coordinator that was started again still ends the right span.
"""

import importlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from common.digests import digest
from common.errors import ConfigError
from common.settings import TraceSettings

QUEUE_MAX = 2048
"""Spans that wait to be sent; further ones are dropped."""
SEND_INTERVAL_S = 1.0
SEND_MAX_S = 5.0
"""Longest time for one call of the endpoint, retries included."""
TRACE_DIGITS, SPAN_DIGITS = 32, 16
ATTEMPT = "attempt"
"""Name of the span of an attempt itself. Every other span is below it."""
EXTRA = "neve[trace]"


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Where spans of an attempt belong, in the words of W3C Trace Context."""

    trace: int
    span: int

    @classmethod
    def of_attempt(cls, attempt: str) -> "TraceContext":
        """Return the trace of an attempt, and the id of its span.

        Args:
            attempt: Its random id.
        """
        whole = digest(["trace", attempt], TRACE_DIGITS + SPAN_DIGITS)
        return cls(int(whole[:TRACE_DIGITS], 16), int(whole[TRACE_DIGITS:], 16))

    @classmethod
    def parse(cls, text: str) -> "TraceContext | None":
        """Return the context that a message carries; None: the attempt is not traced."""
        parts = text.split("-")
        if len(parts) != 4:
            return None
        try:
            return cls(int(parts[1], 16), int(parts[2], 16))
        except ValueError:
            return None

    def child(self, name: str) -> "TraceContext":
        """Return the context of a span below this one; each name comes once in a trace."""
        return TraceContext(self.trace, int(digest([self.text, name], SPAN_DIGITS), 16))

    @property
    def text(self) -> str:
        """The form of a `traceparent` that is sampled."""
        return f"00-{self.trace:032x}-{self.span:016x}-01"


class Spans(Protocol):
    """Where spans go. No method blocks or fails."""

    def begin(self, attempt: str) -> str:
        """Return the context of an attempt for messages; empty: it is not traced."""
        ...

    def emit(
        self,
        context: str,
        name: str,
        times_s: tuple[float, float],
        attributes: Mapping[str, str | int] | None = None,
    ) -> None:
        """Send a span.

        Args:
            context: As a message carries it; empty: nothing is sent.
            name: `attempt` is the span of the attempt itself, any other name one below it.
            times_s: When it began and ended, in seconds since the epoch.
            attributes: What the span says.
        """
        ...


class NoSpans:
    """Tracing is off."""

    def begin(self, attempt: str) -> str:
        """Return that nothing is traced."""
        return ""

    def emit(
        self,
        context: str,
        name: str,
        times_s: tuple[float, float],
        attributes: Mapping[str, str | int] | None = None,
    ) -> None:
        """Send nothing."""


class OtlpSpans:
    """Sends spans to an OTLP/HTTP endpoint, from a thread of its own."""

    def __init__(self, settings: TraceSettings, part: str) -> None:
        """Start the thread.

        Args:
            settings: With an endpoint.
            part: The part of the service that this process is.

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
        # The exporter complains of each failed call; an endpoint may be away for days.
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
        """Return the context of an attempt for messages; empty: it is not in the sample."""
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
        """Queue a span; a full queue drops one."""
        root = TraceContext.parse(context)
        if root is None:
            return
        own = root if name == ATTEMPT else root.child(name)
        began_ns, ended_ns = (int(1e9 * each) for each in times_s)
        self._processor.on_end(
            self._sdk.ReadableSpan(
                name=name,
                context=self._span_context(own),
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
    """Return where a part of the service sends spans.

    Raises:
        ConfigError: Traces are on, and the packages that send spans are not installed.
    """
    return OtlpSpans(settings, part) if settings.endpoint else NoSpans()
