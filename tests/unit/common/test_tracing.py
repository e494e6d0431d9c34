"""Spans as a real receiver of OTLP gets them, and what happens without one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from common.errors import ConfigError
from common.settings import TraceSettings
from common.tracing import QUEUE_MAX, OtlpSpans, Spans, TraceContext, spans_of
from neve.local.machine import free_ports
from tests.support.trace_receiver import trace_receiver

OFF = """
import sys
from common.settings import TraceSettings
from common.tracing import spans_of
spans = spans_of(TraceSettings(), "compactor")
assert spans.begin("att-1") == ""
spans.emit("", "attempt", (1.0, 2.0))
spans.emit("00-%032x-%016x-01" % (1, 2), "attempt", (1.0, 2.0))
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


def flushed(spans: OtlpSpans) -> None:
    assert spans._processor.force_flush()


def test_the_spans_of_an_attempt_hang_together() -> None:
    with trace_receiver() as receiver:
        one = spans_of(TraceSettings(endpoint=receiver.endpoint), "coordinator")
        other = spans_of(TraceSettings(endpoint=receiver.endpoint), "compactor")
        context = one.begin("att-1")
        other.emit(context, "rewrite", (2.5, 3.0), {"neve.attempt": "att-1"})
        one.emit(context, "attempt", (1.0, 4.0), {"neve.input_bytes": 7})
        for each in (one, other):
            assert isinstance(each, OtlpSpans)
            flushed(each)

    by_name = {span.name: span for span in receiver.spans}
    root, child = by_name["attempt"], by_name["rewrite"]
    assert (root.parent, child.parent, child.trace) == (b"", root.id, root.trace)
    assert (root.part, child.part) == ("coordinator", "compactor")
    assert (child.begin_ns, child.end_ns) == (2_500_000_000, 3_000_000_000)
    assert child.attributes == {"neve.attempt": "att-1"}
    assert root.attributes == {"neve.input_bytes": 7}


def test_nothing_is_sent_and_nothing_loaded_when_it_is_off() -> None:
    with trace_receiver() as receiver:
        ended = subprocess.run(
            [sys.executable, "-c", OFF],
            env=os.environ | {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": receiver.endpoint},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    assert (ended.returncode, ended.stdout.strip()) == (0, "[]"), ended.stderr
    assert receiver.calls == 0


def test_what_is_not_in_the_sample_is_not_sent() -> None:
    with trace_receiver() as receiver:
        spans = OtlpSpans(TraceSettings(endpoint=receiver.endpoint, sample_ratio=0.0), "compactor")
        assert spans.begin("att-1") == ""
        spans.emit(spans.begin("att-1"), "attempt", (1.0, 2.0))
        flushed(spans)

        half = OtlpSpans(TraceSettings(endpoint=receiver.endpoint, sample_ratio=0.5), "compactor")
        drawn = sum(bool(half.begin(f"att-{number}")) for number in range(1000))

    assert receiver.calls == 0
    assert 400 < drawn < 600


def test_an_endpoint_that_is_away_bounds_what_waits() -> None:
    endpoint = f"http://127.0.0.1:{free_ports(1)[0]}/v1/traces"
    spans = OtlpSpans(TraceSettings(endpoint=endpoint), "compactor")
    context = spans.begin("att-1")

    for _ in range(5 * QUEUE_MAX):
        spans.emit(context, "rewrite", (1.0, 2.0))

    assert len(spans._processor._batch_processor._queue) <= QUEUE_MAX


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)

    with pytest.raises(ConfigError, match=r"trace.endpoint is set, but .* install neve\[trace\]"):
        spans_of(TraceSettings(endpoint="http://127.0.0.1:1/v1/traces"), "compactor")


@pytest.mark.parametrize("text", ["", "00-1", "00-x-y-01"])
def test_a_context_that_cannot_be_read_is_none(text: str) -> None:
    assert TraceContext.parse(text) is None
    Spans().emit(text, "attempt", (1.0, 2.0))


def test_a_context_is_a_traceparent() -> None:
    context = TraceContext.of_attempt("att-1")

    assert TraceContext.parse(context.text) == context
    assert [len(part) for part in context.text.split("-")] == [2, 32, 16, 2]
    assert context.child("plan") != context.child("queue")
