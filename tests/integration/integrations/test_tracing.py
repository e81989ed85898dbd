"""Tracing: a tick, its publication and the execution on a real worker are one trace."""

import importlib
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from celery import Celery
from greenlet import GreenletExit
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, TraceIdRatioBased

import pgbeat
from pgbeat.beat import enqueuer
from pgbeat.broker.publishing import publisher
from pgbeat.broker.publishing.message_templates import TaskMessage
from pgbeat.broker.publishing.publisher import TransactionPublisher
from pgbeat.config import postgres_url
from pgbeat.database import connections
from pgbeat.integrations import opentelemetry as tracing
from pgbeat.log import JsonFormatter
from tests.support.command_line import Sql
from tests.support.processes import until
from tests.support.rows import make_lane, make_schedule
from tests.support.transport_workers import TransportWorkers

#: An app whose workers write their spans to a file, a line each.
APP = """
import os
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
import pgbeat.tracing
from celery import Celery
from pgbeat import Skip

provider = TracerProvider()
out = open(os.environ["SPANS"], "a", buffering=1)
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(
    out=out, formatter=lambda span: span.to_json(indent=None) + "\\n")))
pgbeat.tracing.instrument(provider)
app = Celery("traced", broker=os.environ["TESTS_BROKER"], backend=os.environ["TESTS_BROKER"])
app.conf.update(task_ignore_result=True, result_expires=None)

@app.task(shared=False, name="traced.add")
def add(x=1, y=2):
    with provider.get_tracer("app").start_as_current_span("inside"):
        return x + y

@app.task(shared=False, name="traced.in_lane", pgbeat={"lane": "one"})
def in_lane():
    add.delay(5)

@app.task(shared=False, name="traced.replaced", bind=True)
def replaced(self):
    raise self.replace(add.s(6))

@app.task(shared=False, name="traced.batch", pgbeat={"batch": 2, "batch_after": "1 hour"})
def batch(members):
    with provider.get_tracer("app").start_as_current_span("inside"):
        pass

@app.task(shared=False, name="traced.fail")
def fail():
    raise ValueError("no such thing")

@app.task(shared=False, name="traced.skip")
def skip():
    raise Skip("nothing to do")
"""


class Traced:
    """Turns tracing on in this process; yields the spans."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler) if sampler else TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        tracing.instrument(self.provider)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        found = [span for span in self.spans if span.name == name]
        assert len(found) == 1, [span.name for span in self.spans]
        return found[0]


@pytest.fixture
def traced() -> Iterator[Traced]:
    yield Traced()
    tracing.uninstrument()


@pytest.fixture(autouse=True)
def off_again() -> Iterator[None]:
    yield
    tracing.uninstrument()


def ids(span: ReadableSpan) -> tuple[int, int]:
    made = span.get_span_context()
    assert made is not None
    return made.trace_id, made.span_id


def test_lines_of_the_log_in_json_have_the_trace(traced: Traced) -> None:
    record = logging.LogRecord("n", logging.INFO, "f", 1, "said", (), None)
    span = trace.NonRecordingSpan(trace.SpanContext(0xABC, 0xDEF, is_remote=False))
    with trace.use_span(span):
        line = json.loads(JsonFormatter().format(record))
    assert (int(line["trace_id"], 16), int(line["span_id"], 16)) == (0xABC, 0xDEF)
    assert len(line["trace_id"]) == 32
    tracing.uninstrument()
    with trace.use_span(span):
        assert "trace_id" not in json.loads(JsonFormatter().format(record))


def test_a_tick_and_what_it_publishes_are_one_trace(traced: Traced, beat: Any, sql: Sql) -> None:
    make_schedule(sql, due="0")
    assert beat().run_due() == 1
    [(job,)] = sql("SELECT id FROM pgbeat.jobs")
    tick, publish = traced.named("tick s"), traced.named("publish tests.add")
    assert ids(tick) == (tracing.trace_id(job), tracing.span_id(job, "tick"))
    assert ids(publish) == (tracing.trace_id(job), tracing.span_id(job, "publish"))
    assert tick.parent is None and publish.parent is not None
    assert publish.parent.span_id == ids(tick)[1]
    assert tick.attributes is not None and tick.attributes["pgbeat.outcome"] == "launched"
    assert tick.start_time is not None and publish.start_time is not None
    assert tick.start_time <= publish.start_time


def test_a_failed_tick_has_a_span_and_a_skip_has_none(traced: Traced, beat: Any, sql: Sql) -> None:
    make_schedule(sql, "no", due="0", condition_sql="SELECT false")
    make_schedule(sql, "bad", due="0", condition_sql="SELECT 1 / 0")
    assert beat().run_due() == 2
    assert [span.name for span in traced.spans] == ["tick bad"]
    assert not traced.spans[0].status.is_ok


def test_messages_are_cut_from_templates_all_the_same(
    traced: Traced, app: Celery, database: str
) -> None:
    made = TransactionPublisher(app)
    one, two = str(uuid4()), str(uuid4())
    with connections.engine(postgres_url(database), "tests").begin() as connection:
        made.prepare(connection)
        for job in (one, two):
            made.publish(TaskMessage(job, "tests.add", (1,)))
        made.flush(connection, [one, two])
    assert made._templates.message(TaskMessage(str(uuid4()), "tests.add", (1,))) is not None
    assert [ids(span)[0] for span in traced.spans] == [tracing.trace_id(one), tracing.trace_id(two)]


def test_what_a_commit_refused_has_no_tick(traced: Traced, beat: Any, sql: Sql) -> None:
    make_schedule(sql, due="0", task="tests.nobody")
    assert beat().run_due() == 1
    tick = traced.named("tick s")
    assert not tick.status.is_ok and ids(tick)[0]


def test_samplers_by_ratio_see_ids_all_over() -> None:
    sampler = TraceIdRatioBased(0.25)
    jobs = [uuid4() for _ in range(2000)]

    def taken(numbers: list[int]) -> int:
        decisions = [sampler.should_sample(None, number, "x").decision for number in numbers]
        return decisions.count(Decision.RECORD_AND_SAMPLE)

    assert 350 < taken([tracing.trace_id(job) for job in jobs]) < 650
    # As they are, UUIDs are never sampled so.
    assert taken([job.int for job in jobs]) == 0


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
def test_a_trace_is_sampled_whole_or_not_at_all(ratio: float) -> None:
    Traced(ParentBased(TraceIdRatioBased(ratio)))
    on = tracing._tracing
    assert on is not None
    seen = set()
    for _ in range(100):
        job = str(uuid4())
        begins = on.start(job, "publish", "x").get_span_context().trace_flags.sampled
        below = trace.get_current_span(on.below(job, "publish", "x")).get_span_context()
        assert below.trace_flags.sampled == begins
        seen.add(begins)
    assert seen == {0.0: {False}, 0.5: {False, True}, 1.0: {True}}[ratio]


def test_the_trace_of_any_id_is_valid() -> None:
    for job in (UUID(int=0), UUID(int=1), uuid4()):
        assert trace.SpanContext(
            tracing.trace_id(job), tracing.span_id(job, "tick"), is_remote=True
        ).is_valid


@pytest.fixture
def transport_workers(transport_workers: TransportWorkers, tmp_path: Path) -> TransportWorkers:
    (tmp_path / "traced_app.py").write_text(APP)
    transport_workers.env |= {"PYTHONPATH": f"{tmp_path}", "SPANS": str(tmp_path / "spans")}
    return transport_workers


def written(transport_workers: TransportWorkers) -> list[dict[str, Any]]:
    file = transport_workers.folder / "spans"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_an_execution_is_in_its_jobs_trace(
    transport_workers: TransportWorkers, traced: Traced, database: str
) -> None:
    app = Celery("traced", broker=transport_workers.env["TESTS_BROKER"], set_as_current=False)
    made = TransactionPublisher(app)
    jobs = {task: str(uuid4()) for task in ("add", "fail", "skip")}
    with connections.engine(postgres_url(database), "tests").begin() as connection:
        made.prepare(connection)
        for task, job in jobs.items():
            made.publish(TaskMessage(job, f"traced.{task}"))
        made.flush(connection, list(jobs.values()))
    # Of what is no job, no span.
    app.send_task("traced.add")
    app.close()
    transport_workers.worker("-P", "prefork", "-c", "1", "--without-mingle", app="traced_app")
    until(
        lambda: transport_workers.is_empty() and len(written(transport_workers)) >= 4, 90, "spans"
    )
    spans = {span["name"]: span for span in written(transport_workers)}
    for task, job in jobs.items():
        run = spans[f"run traced.{task}"]
        assert int(run["context"]["trace_id"], 16) == tracing.trace_id(job)
        assert int(run["parent_id"], 16) == tracing.span_id(job, "publish")
        assert run["kind"] == "SpanKind.CONSUMER"
    inside = [s for s in written(transport_workers) if s["name"] == "inside" and s["parent_id"]]
    assert [s["parent_id"] for s in inside] == [spans["run traced.add"]["context"]["span_id"]]
    outcomes = {t: spans[f"run traced.{t}"]["attributes"]["pgbeat.outcome"] for t in jobs}
    assert outcomes == {"add": "completed", "fail": "failed", "skip": "skipped"}
    [event] = spans["run traced.fail"]["events"]
    assert event["attributes"]["exception.message"] == "no such thing"
    assert spans["run traced.skip"]["status"]["status_code"] == "UNSET"


@pytest.fixture
def traced_app(
    transport_workers: TransportWorkers, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Celery]:
    """The workers' app in this process, whose spans go to the same file."""
    for name in ("SPANS", "TESTS_BROKER"):
        monkeypatch.setenv(name, transport_workers.env[name])
    monkeypatch.setenv("PGBEAT_URL", transport_workers.database)
    monkeypatch.syspath_prepend(transport_workers.env["PYTHONPATH"])
    monkeypatch.delitem(sys.modules, "traced_app", raising=False)
    with importlib.import_module("traced_app").app as app:
        yield app


def test_what_a_request_sends_is_in_its_trace(
    transport_workers: TransportWorkers, traced_app: Celery, sql: Sql
) -> None:
    """Jobs, plain tasks, what waits for its lane, and what these send."""
    make_lane(sql, "one")
    provider = importlib.import_module("traced_app").provider
    with provider.get_tracer("app").start_as_current_span("request") as request:
        of_request = f"0x{request.get_span_context().trace_id:032x}"
        add = traced_app.tasks["traced.add"]
        pgbeat.submit(add, 1)
        pgbeat.submit_many([add.s(2), add.s(3)], app=traced_app)
        add.delay(4)
        for _ in range(2):  # the second waits for the first
            traced_app.tasks["traced.in_lane"].delay()
        pgbeat.submit(traced_app.tasks["traced.replaced"])
    add.delay(9)  # nobody's
    own = traced_app.tasks["traced.in_lane"].delay()  # it begins its own trace
    transport_workers.env["PGBEAT_URL"] = transport_workers.database
    transport_workers.worker("-P", "prefork", "-c", "1", "--without-mingle", app="traced_app")
    names = ("run traced.add", "run traced.in_lane")

    def runs() -> list[str]:
        return [span["name"] for span in written(transport_workers) if span["name"] in names]

    until(lambda: transport_workers.is_empty() and len(runs()) >= 11, 90, "spans")
    spans = written(transport_workers)
    assert sorted(runs()) == ["run traced.add"] * 8 + ["run traced.in_lane"] * 3
    of_job, in_it = f"0x{tracing.trace_id(own.id):032x}", []
    for span in spans:
        is_nobodys = span["name"] == "inside" and span["parent_id"] is None
        if span["context"]["trace_id"] == of_job:
            in_it.append((span["name"], span["parent_id"] is None))
        else:
            assert is_nobodys or span["context"]["trace_id"] == of_request, span
    assert sorted(in_it) == [
        ("inside", False),
        ("run traced.add", False),
        ("run traced.in_lane", True),
    ]
    known = {None, *(span["context"]["span_id"] for span in spans)}
    assert {span["parent_id"] for span in spans} <= known
    published = [span for span in spans if span["name"].startswith("publish")]
    assert {span["parent_id"] for span in published if span["name"] == "publish traced.add"} == {
        f"0x{request.get_span_context().span_id:016x}"
    }


def test_members_of_a_batch_are_in_their_own_traces(
    transport_workers: TransportWorkers, traced_app: Celery
) -> None:
    """The one in whose run the function is called is linked with the others, and they with it."""
    provider = importlib.import_module("traced_app").provider
    requests, members = {}, []
    for number in range(2):
        with provider.get_tracer("app").start_as_current_span(f"request {number}") as request:
            members.append(traced_app.tasks["traced.batch"].delay().id)
            requests[members[-1]] = request.get_span_context()
    transport_workers.env["PGBEAT_URL"] = transport_workers.database
    transport_workers.beat(app="traced_app")
    transport_workers.worker("-P", "prefork", "-c", "1", "--without-mingle", app="traced_app")

    def named(name: str) -> list[dict[str, Any]]:
        return [span for span in written(transport_workers) if span["name"] == name]

    until(lambda: len(named("run traced.batch")) == 2, 90, "spans")
    for span in (runs := named("run traced.batch")):
        request = requests[span["attributes"]["pgbeat.job.id"]]
        assert span["context"]["trace_id"] == f"0x{request.trace_id:032x}"
        assert span["parent_id"] == f"0x{request.span_id:016x}"
    [inside] = named("inside")
    [called] = [span for span in runs if span["context"]["span_id"] == inside["parent_id"]]
    [other] = [span for span in runs if span is not called]
    assert [link["context"]["span_id"] for link in called["links"]] == [other["parent_id"]]
    assert [link["context"] for link in other["links"]] == [called["context"]]


class Request:
    """A task's request, as receivers see it."""

    is_eager, retries, hostname, pgbeat_job = False, 0, "w@tests", True
    _pgbeat_span: Any = None


class Task:
    """A task, as receivers see it."""

    name = "t"

    def __init__(self) -> None:
        self.request = Request()


def test_a_traceparent_in_the_headers_is_followed(traced: Traced) -> None:
    task = Task()
    task.request.traceparent = (  # type: ignore[attr-defined]
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    )
    tracing._begin(str(uuid4()), task)
    tracing._end(task, None, "SUCCESS")
    run = traced.named("run t")
    assert run.parent is not None and run.parent.span_id == 0xB7AD6B7169203331
    assert ids(run)[0] == 0x0AF7651916CD43DD8448EB211C80319C


class UnwordedError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "state", "said"),
    [
        (ValueError("no"), "FAILURE", "ValueError: no"),
        (UnwordedError(), "FAILURE", "UnwordedError"),
        (SystemExit("it must end"), None, "SystemExit: it must end"),
        (GreenletExit(), None, None),
    ],
)
def test_a_span_says_what_ended_it(
    error: BaseException, state: str | None, said: str | None, traced: Traced
) -> None:
    """Celery gives a receiver no error that is none of `Exception`; it is being raised."""
    task = Task()
    tracing._begin(str(uuid4()), task)
    try:
        raise error
    except BaseException:
        tracing._end(task, error if state else None, state)
    run = traced.named("run t")
    assert run.status.description == said and run.attributes is not None
    assert run.attributes["pgbeat.outcome"] == ("failed" if said else "cancelled")
    assert not trace.get_current_span().get_span_context().is_valid


def test_what_goes_wrong_in_tracing_fails_no_task(traced: Traced) -> None:
    tracing._begin("this is no UUID", Task())
    assert not traced.spans


def test_off_it_costs_nothing() -> None:
    assert not enqueuer.observers and not publisher.observers
    code = (
        "import sys, pgbeat.beat.scheduler, pgbeat.worker; "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_it_is_turned_off_again(traced: Traced) -> None:
    assert enqueuer.observers
    tracing.instrument(traced.provider)  # twice is once
    tracing.uninstrument()
    assert not enqueuer.observers and not publisher.observers
    signals: Any = importlib.import_module("celery.signals")
    assert not any("tracing" in str(key) for key, _ in signals.task_prerun.receivers)
