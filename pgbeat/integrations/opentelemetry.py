"""Traces a job's tick, its publication and its executions as one trace, by OpenTelemetry.

`pgbeat.tracing.instrument()` in the app's module turns it on, wherever the app is loaded.

What is sent within a span, such as that of a request, carries its W3C context in the message's
headers, and in the job's row while it waits; its spans are in that trace. Other messages carry
nothing: a job's trace has the job's id (`trace_id`), and the spans that others are children of have
ids that follow from it. So beats still make messages from templates.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from functools import wraps
from hashlib import blake2b
from typing import Any, NamedTuple, ParamSpec
from uuid import UUID

from celery import signals
from celery.exceptions import Ignore, Retry
from opentelemetry import context, trace
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pgbeat import log
from pgbeat.beat import enqueuer
from pgbeat.beat.evaluation import Decision
from pgbeat.broker.messages import JOB_HEADER, NEW_JOB_HEADER
from pgbeat.broker.publishing import carried, publisher
from pgbeat.broker.publishing.message_templates import TaskMessage
from pgbeat.jobs.running.task_exceptions import Cancelled, Skip, Snooze
from pgbeat.version import __version__
from pgbeat.worker.finishing import batches
from pgbeat.worker.recording.attempts import error_text

logger = logging.getLogger("pgbeat.tracing")

P = ParamSpec("P")
#: Where an execution's span is, on a task's request, and that of the run of its batch.
_SPAN, _BATCH_SPAN = "_pgbeat_span", "_pgbeat_batch_span"
_LOW = (1 << 64) - 1
#: The headers of a trace's context, and who reads and writes them.
_W3C, _HEADERS = TraceContextTextMapPropagator(), ("traceparent", "tracestate")


def trace_id(job_id: str | UUID) -> int:
    """Returns the id of a job's trace: the job's UUID with its two halves swapped.

    Samplers by ratio look at the low half, and there a UUID has bits that are always the same.
    """
    number = UUID(str(job_id)).int
    return ((number & _LOW) << 64 | number >> 64) or 1


def span_id(job_id: str | UUID, span: str) -> int:
    """Returns the id of a job's `tick` or `publish` span."""
    digest = blake2b(UUID(str(job_id)).bytes, digest_size=8, person=span.encode()).digest()
    return int.from_bytes(digest, "big") or 1


class _Ids:
    """Generates the provider's ids, except for a span whose id is given."""

    def __init__(self, others: Any) -> None:
        self._others = others

    def generate_trace_id(self) -> int:
        wanted = _wanted.get()
        return wanted.trace_id if wanted else int(self._others.generate_trace_id())

    def generate_span_id(self) -> int:
        wanted = _wanted.get()
        return (wanted and wanted.span_id) or int(self._others.generate_span_id())

    def is_trace_id_random(self) -> bool:
        return False


class _Wanted(NamedTuple):
    trace_id: int
    #: 0 for any.
    span_id: int


_wanted: ContextVar[_Wanted | None] = ContextVar("pgbeat_span", default=None)


class _Tracing:
    """Makes the spans, while tracing is turned on."""

    def __init__(self, provider: trace.TracerProvider | None) -> None:
        self._given = provider
        self._tracer: trace.Tracer | None = None
        self._of: trace.TracerProvider | None = None

    @property
    def provider(self) -> trace.TracerProvider:
        return self._given or trace.get_tracer_provider()

    @property
    def tracer(self) -> trace.Tracer:
        """The provider's tracer; the app may set its provider after `instrument`."""
        provider = self.provider
        if self._tracer is None or provider is not self._of:
            self._of, self._tracer = provider, provider.get_tracer("pgbeat", __version__)
            ids = getattr(self._tracer, "id_generator", None)
            if ids is not None:
                self._tracer.id_generator = _Ids(ids)  # type: ignore[attr-defined]
        return self._tracer

    def start(self, job_id: str, span: str | None, name: str, **values: Any) -> Span:
        """Starts a span of a job with the id of its kind; of none, it begins the job's trace."""
        token = _wanted.set(_Wanted(trace_id(job_id), span_id(job_id, span) if span else 0))
        try:
            return self.tracer.start_span(name, **values)
        finally:
            _wanted.reset(token)

    def below(self, job_id: str, span: str, name: str) -> context.Context:
        """Returns the context of a job's span that another process has ended, or will end."""
        number = trace_id(job_id)
        sampler = getattr(self.tracer, "sampler", None)
        # As it is decided where the trace begins, by the trace's id alone.
        is_sampled = (
            sampler is None or sampler.should_sample(None, number, name).decision.is_sampled()
        )
        flags = TraceFlags(TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT)
        parent = SpanContext(number, span_id(job_id, span), is_remote=True, trace_flags=flags)
        return trace.set_span_in_context(NonRecordingSpan(parent), context.Context())


_tracing: _Tracing | None = None


def instrument(tracer_provider: trace.TracerProvider | None = None) -> None:
    """Turns tracing on in this process and those that it forks.

    Spans go to `tracer_provider`, or to OpenTelemetry's global one. Without one they cost a little
    and go nowhere.
    """
    global _tracing
    uninstrument()
    _tracing = _Tracing(tracer_provider)
    enqueuer.observers.append(_decided)
    publisher.observers.append(_publishing)
    carried.carriers.append(_carried)
    batches.observers.append(_batched)
    log.contexts.append(_ids)
    for signal, receiver in _RECEIVERS:
        signal.connect(receiver, weak=False, dispatch_uid=f"pgbeat.tracing{receiver.__name__}")


def uninstrument() -> None:
    """Turns tracing off."""
    global _tracing
    _tracing = None
    if _decided in enqueuer.observers:
        enqueuer.observers.remove(_decided)
        publisher.observers.remove(_publishing)
        carried.carriers.remove(_carried)
        batches.observers.remove(_batched)
        log.contexts.remove(_ids)
    for signal, receiver in _RECEIVERS:
        signal.disconnect(receiver, dispatch_uid=f"pgbeat.tracing{receiver.__name__}")


def _ids() -> dict[str, str]:
    """Returns the ids of the current trace and span, for lines of the log."""
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return {}
    return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}


def _carried() -> Mapping[str, str]:
    """Returns the headers of what is sent within a span."""
    headers: dict[str, str] = {}
    _W3C.inject(headers)
    return headers


def _context_in(headers: Mapping[str, Any]) -> context.Context | None:
    """Returns the context that headers carry, if there is one."""
    texts = {name: headers[name] for name in _HEADERS if isinstance(headers.get(name), str)}
    found = _W3C.extract(texts, context.Context())
    return found if trace.get_current_span(found).get_span_context().is_valid else None


def _quietly(function: Callable[P, None]) -> Callable[P, None]:
    """Logs errors of tracing, so that no beat and no task fails because of them."""

    @wraps(function)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except Exception:
            logger.exception("A span is lost")

    return quiet


# ----- ticks and messages


@_quietly
def _decided(decisions: Sequence[Decision], began: int) -> None:
    """Makes a span for each launched or failed tick; skips would be too many."""
    tracing = _tracing
    if tracing is None:
        return
    for decision in decisions:
        tick = decision.tick
        name = f"tick {tick.schedule}"
        values: dict[str, Any] = {
            "context": context.Context(),
            "start_time": began,
            "attributes": {
                "pgbeat.schedule": tick.schedule,
                "pgbeat.trigger": tick.trigger,
                "pgbeat.due_at": tick.due_at.isoformat(),
                "pgbeat.outcome": tick.outcome,
            },
        }
        for job_id in tick.job_ids:  # each job has its own trace, which begins with the tick
            attributes = {**values["attributes"], "pgbeat.job.id": job_id}
            tracing.start(job_id, "tick", name, **{**values, "attributes": attributes}).end()
        if tick.outcome == "failed":
            span = tracing.tracer.start_span(name, **values)
            span.set_status(Status(StatusCode.ERROR, tick.error))
            span.end()


@contextmanager
def _publishing(message: TaskMessage) -> Iterator[None]:
    """Wraps the making of a job's message, in the open transaction, in a span."""
    span = _publish_span(message)
    if span is None:
        yield
    else:
        with trace.use_span(span, end_on_exit=True):
            yield


def _publish_span(message: TaskMessage) -> Span | None:
    tracing = _tracing
    if tracing is None:
        return None
    try:
        job = UUID(message.job_id)
        name = f"publish {message.task}"
        above = _context_in(message.options.get("headers") or {})
        if above is None:
            # A schedule's job has an id of version 5 (`Schedule.job_id`); others have no tick.
            has_tick = job.version == 5
            above = tracing.below(message.job_id, "tick", name) if has_tick else context.Context()
        return tracing.start(
            message.job_id,
            "publish",
            name,
            context=above,
            kind=SpanKind.PRODUCER,
            attributes=_attributes(message.job_id, message.task, "send"),
        )
    except Exception:
        logger.exception("A span is lost")
        return None


def _attributes(job_id: str, task: str, operation: str) -> dict[str, Any]:
    """Returns attributes by OpenTelemetry's conventions for messaging, and pgbeat's own."""
    return {
        "messaging.system": "pgbeat",
        "messaging.operation.type": operation,
        "messaging.message.id": job_id,
        "pgbeat.job.id": job_id,
        "pgbeat.task": task,
    }


# ----- executions


class _Running(NamedTuple):
    span: Span
    token: Token[context.Context]


@_quietly
def _begin(task_id: str, task: Any, **kwargs: Any) -> None:
    tracing, request = _tracing, task.request
    if tracing is None or request.is_eager:
        return
    above, name = _given_context(request), f"run {task.name}"
    is_job = bool(getattr(request, JOB_HEADER, None))
    if not is_job and (above is None or above == context.get_current()):
        return  # it isn't traced, or another instrumentation does
    attributes = _attributes(task_id, task.name, "process")
    attributes["celery.retries"] = request.retries or 0
    if request.hostname:
        attributes["pgbeat.worker"] = str(request.hostname)
    values: dict[str, Any] = {
        "kind": SpanKind.CONSUMER,
        "attributes": attributes,
        "links": getattr(request, _BATCH_SPAN, ()),
    }
    if above is None and getattr(request, NEW_JOB_HEADER, None):  # its message was no job's
        span = tracing.start(task_id, None, name, context=context.Context(), **values)
    else:
        above = above or tracing.below(task_id, "publish", name)
        span = tracing.tracer.start_span(name, context=above, **values)
    token = context.attach(trace.set_span_in_context(span))
    setattr(request, _SPAN, _Running(span, token))


@_quietly
def _batched(requests: Sequence[dict[str, Any]]) -> None:
    """Links the span of a batch's run, in which its function is called, with the other members.

    Each of these has a span in its own trace when it ends.
    """
    tracing, run = _tracing, trace.get_current_span()
    if tracing is None or not run.get_span_context().is_valid:
        return
    for request in requests:
        above = _context_in(request) or tracing.below(request["id"], "publish", request["task"])
        run.add_link(trace.get_current_span(above).get_span_context())
        request[_BATCH_SPAN] = [trace.Link(run.get_span_context())]


def _given_context(request: Any) -> context.Context | None:
    """Returns the context that another instrumentation opened or put into the message."""
    if trace.get_current_span().get_span_context().is_valid:
        return context.get_current()
    return _context_in({name: getattr(request, name, None) for name in _HEADERS})


@_quietly
def _end(task: Any, retval: Any = None, state: str | None = None, **kwargs: Any) -> None:
    running: _Running | None = getattr(task.request, _SPAN, None)
    if running is None:
        return
    setattr(task.request, _SPAN, None)
    context.detach(running.token)
    _conclude(running.span, getattr(retval, "exception", retval), state)
    running.span.end()


def _conclude(span: Span, error: Any, state: str | None) -> None:
    """Says in a span how its run ended."""
    if state is None:  # what is being raised is no `Exception`
        error = sys.exc_info()[1]
    if isinstance(error, Skip):
        span.set_attribute("pgbeat.outcome", "skipped")
        span.set_attribute("pgbeat.reason", error.reason)
    elif isinstance(error, Snooze):
        span.set_attribute("pgbeat.outcome", "snoozed")
    elif isinstance(error, Cancelled) or type(error).__name__ == "GreenletExit":
        span.set_attribute("pgbeat.outcome", "cancelled")
    elif state == "SUCCESS" or isinstance(error, Ignore):
        span.set_attribute("pgbeat.outcome", "completed")
    else:
        cause = error.exc if isinstance(error, Retry) and error.exc is not None else error
        span.set_attribute("pgbeat.outcome", "retried" if state == "RETRY" else "failed")
        if isinstance(cause, BaseException):
            with suppress(Exception):  # one that has no words
                span.record_exception(cause)
            span.set_status(Status(StatusCode.ERROR, error_text(cause)))
        else:
            span.set_status(Status(StatusCode.ERROR, str(state)))


@_quietly
def _flush(**kwargs: Any) -> None:
    """Sends the spans before the process ends; a pool's child runs no exit handlers."""
    flush = getattr(_tracing and _tracing.provider, "force_flush", None)
    if flush is not None:
        flush(5_000)


_RECEIVERS = (
    (signals.task_prerun, _begin),
    (signals.task_postrun, _end),
    (signals.worker_process_shutdown, _flush),
    (signals.worker_shutdown, _flush),
)
