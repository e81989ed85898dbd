"""Traces jobs by OpenTelemetry: `pgbeat.tracing.instrument()`."""

from pgbeat.integrations.opentelemetry import instrument, span_id, trace_id, uninstrument

__all__ = ["instrument", "span_id", "trace_id", "uninstrument"]
