"""What publish options must not hold: what would make a message another job's."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from celery import Celery, chain, chord, current_app, group
from celery import signature as celery_signature
from celery.app.task import Context
from celery.signals import before_task_publish
from hypothesis import given, settings
from hypothesis import strategies as st

from pgbeat.broker.publishing import reserved
from pgbeat.broker.publishing.publisher import check_options
from pgbeat.errors import Forbidden, InvalidSchedule

OTHER = "7f0c0000-0000-4000-8000-000000000001"


def signature(**options: Any) -> dict[str, Any]:
    return {"task": "jobs.add", "args": [1], "kwargs": {}, "options": options}


def workflow(kind: str, **kwargs: Any) -> dict[str, Any]:
    return {
        "task": f"celery.{kind}",
        "args": [],
        "kwargs": kwargs,
        "options": {},
        "subtask_type": kind,
        "immutable": False,
    }


def nested(depth: int) -> dict[str, Any]:
    return signature() if depth == 0 else signature(link=nested(depth - 1))


def test_reserved_headers_are_those_of_celery() -> None:
    app = Celery("plain", set_as_current=False, broker="memory://")
    found = reserved.headers()
    assert app.amqp.as_task_v2("id", "task").headers.keys() <= found
    assert {name for name in vars(Context) if not name.startswith("_")} <= found
    assert {"task", "id", "group", "stamps", "chord", "is_eager", "CC", "compression"} <= found
    assert reserved.is_reserved_header("PGBEAT_job")
    assert reserved.is_reserved_header("__class__")
    for own in ("traceparent", "x-request-id", "sentry-trace", "tenant", "Task-Owner"):
        assert not reserved.is_reserved_header(own), own
    app.close()


BAD: list[dict[str, Any]] = [
    *({"headers": {name: OTHER}} for name in (
        "id", "task", "root_id", "parent_id", "group", "retries", "timelimit", "stamps",
        "stamped_headers", "reply_to", "correlation_id", "called_directly", "is_eager", "hostname",
        "pgbeat_job", "pgbeat_own", "pgbeat_attempt", "BCC", "x-death", "_protected",
    )),
    {"link": signature(task_id=OTHER, headers={"pgbeat_job": True})},
    {"link": signature(headers={"id": OTHER})},
    {"link_error": [signature(), signature(task_id=OTHER)]},
    *({"link": signature(**{name: OTHER})} for name in (
        "task_id", "reply_to", "root_id", "parent_id", "group_id", "chord", "chain", "shadow",
        "stamped_headers", "correlation_id", "delivery_tag", "producer", "connection",
    )),
    {"link": signature(link=signature(link_error=signature(task_id=OTHER)))},
    {"link": signature(link_error={"task": "jobs.add", "kwargs": {}, "args": []})},
    {"link": [signature(), [signature()]]},
    {"link": {**signature(), "chord_size": 1}},
    {"link": {**signature(), "options": [["task_id", OTHER]]}},
    {"link": {**signature(), "subtask_type": "xmap", "kwargs": {"task": signature(), "it": []}}},
    {"link": {**signature(), "task": "celery.group", "args": [[signature(task_id=OTHER)]]}},
    {"link": {
        "subtask_type": "chain", "args": [], "kwargs": {"tasks": [signature()]},
        "options": {"task_id": OTHER, "headers": {"pgbeat_job": True}},
    }},
    {"link": workflow("chain", tasks=[signature(task_id=OTHER)])},
    {"link": workflow("chain", tasks=[{**signature(), "task_id": OTHER}])},
    {"link": workflow("chain", tasks=[signature()], body=signature(task_id=OTHER))},
    {"link": workflow("group", tasks=[workflow("group", tasks=[signature(task_id=OTHER)])])},
    {"link": workflow("group", tasks={"a": signature()})},
    {"link": {**workflow("chord", header=[], body=signature()), "task_id": OTHER}},
    {"link": workflow("chord", header=[signature()], body=signature(link=signature(id=OTHER)))},
    {"link": workflow("chord", header=[], body=None, kwargs={"body": signature(task_id=OTHER)})},
    {"link": nested(40)},
    {"reply_to": "celery"},
    {"root_id": OTHER},
    {"parent_id": OTHER},
    {"group_id": OTHER},
    {"task_id": OTHER},
    *({key: name} for key in ("queue", "exchange", "routing_key") for name in (
        "celery@host.celery.pidbox", "celery.pidbox", "reply.celery.pidbox", "celeryev",
        "celeryev.1234", "amq.gen-1", "celery_delayed_27", "celeryresults",
    )),
    {"link": signature(queue="celery@host.celery.pidbox")},
]  # fmt: skip


@pytest.mark.parametrize("options", BAD, ids=lambda options: repr(options)[:80])
def test_options_that_reach_another_message_are_invalid(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchedule):
        check_options(options)


def test_the_apps_own_options_are_valid() -> None:
    check_options(
        {
            "headers": {"traceparent": "00-1-2-01", "tenant": "a"},
            "queue": "mails",
            "expires": 60,
            "link": signature(queue="mails", countdown=5, headers={"tenant": "a"}),
            "link_error": [
                nested(10),
                {**signature(), "kwargs": {"data": {"task": 1, "options": 2}}},
            ],
        }
    )
    add = celery_signature("jobs.add", (1,))
    several = chain(add, group(add, chain(add, add)), chord([add, add], add.clone()))
    for canvas in (several, json.loads(json.dumps(several)), several.clone(), chord(several, add)):
        check_options({"link": canvas})


@pytest.mark.parametrize(
    "options",
    [
        {"retry_policy": {"max_retries": None, "interval_start": 1e9}},
        {"immediate": True},
        {"shadow": "jobs.harmless"},
        {"queue": OTHER},
        {"exchange": "mails", "routing_key": "mails"},
        {"link": signature(retry=True)},
        {"link": workflow("chain", tasks=[signature()])},
    ],
    ids=repr,
)
def test_what_only_administrators_may_give(options: dict[str, Any]) -> None:
    check_options({key: value for key, value in options.items() if key != "link"})
    with pytest.raises(Forbidden):
        reserved.check_for_user(options)


# ----- whatever is accepted, against what Celery makes of it

ALLOWED = ("jobs.add", "jobs.mail")
_ids = st.sampled_from(("task_id", "id", "root_id", "parent_id", "group_id", "reply_to", "group"))
#: What somebody would smuggle in: another job's id, under the keys that Celery reads.
_evil = st.one_of(
    st.builds(lambda key: {key: OTHER}, _ids),
    st.just({"headers": {"pgbeat_job": True, "id": OTHER}}),
    st.just({"task_id": OTHER, "headers": {"pgbeat_job": True}}),
    st.builds(lambda key: {key: signature(task_id=OTHER)}, st.sampled_from(("link", "chord"))),
    st.just({"chain": [signature(task_id=OTHER)]}),
    st.just({"options": {"task_id": OTHER}}),
    st.just({"subtask_type": "chain", "kwargs": {"tasks": [signature(task_id=OTHER)]}}),
    st.just({"task": "jobs.secret"}),
)


def _grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=2)
    linked = st.builds(
        lambda key, value: signature(**{key: value}),
        st.sampled_from(("link", "link_error")),
        st.one_of(inner, several),
    )
    return st.one_of(
        linked,
        st.builds(lambda tasks: workflow("chain", tasks=tasks), several),
        st.builds(lambda tasks: workflow("group", tasks=tasks), several),
        st.builds(lambda header, body: workflow("chord", header=header, body=body), several, inner),
    )


_canvases = st.recursive(
    st.builds(lambda task: {**signature(), "task": task}, st.sampled_from(ALLOWED)),
    _grown,
    max_leaves=5,
)


def _mappings(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, dict | list):
            yield from _mappings(each)


@st.composite
def _links(draw: Callable[[Any], Any]) -> Any:
    """Returns a canvas, perhaps with something smuggled in, or left out."""
    canvas = json.loads(json.dumps(draw(_canvases)))
    for _ in range(draw(st.integers(0, 2))):
        target = draw(st.sampled_from(list(_mappings(canvas))))
        if draw(st.booleans()):
            target.update(deepcopy(draw(_evil)))  # which may be a target, too
        elif target:
            target.pop(draw(st.sampled_from(sorted(target))))
    return canvas


def _app() -> Celery:
    app = Celery("run", set_as_current=False, broker="memory://", backend="cache+memory://")
    app.conf.task_allow_error_cb_on_chord_header = True
    app.conf.task_default_queue = "run"  # the broker in memory is the whole process's

    def task(*args: Any, **kwargs: Any) -> None:
        """Does nothing: it is only sent."""

    for name in (*ALLOWED, "jobs.secret"):
        app.task(name=name, typing=False, shared=False)(task)
    return app


@pytest.fixture(scope="module")
def sender() -> Iterator[Celery]:
    """Returns the app that chords without one of their own use, too."""
    app, before = _app(), current_app._get_current_object()
    app.set_current()
    yield app
    before.set_current()
    app.close()


class _Run:
    """Sends what Celery would, as workers do whose tasks succeed and fail."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.headers: list[dict[str, Any]] = []

    def run(self, link: Any) -> None:
        sent: list[tuple[dict[str, Any], Any]] = []

        def note(headers: Any, body: Any, **kwargs: Any) -> None:
            sent.append((dict(headers), body))

        # Before Celery 5.7, a weak receiver that ended hides all later ones from this app.
        before_task_publish.connect(note, weak=False)
        try:
            self._send(link)
            while sent and len(self.headers) < 100:
                headers, (_, kwargs, embed) = sent.pop()
                self.headers.append(headers)
                for key in ("callbacks", "errbacks", "chord"):
                    found = embed.get(key) or []
                    for each in found if isinstance(found, list) else [found]:
                        self._send(each)
                if chain := list(embed.get("chain") or []):
                    self._send(chain.pop(), chain=chain)
                if "callback" in kwargs:  # of celery.chord_unlock
                    self._send(kwargs["callback"])
        finally:
            before_task_publish.disconnect(note)

    def _send(self, given: Any, **options: Any) -> None:
        with suppress(Exception):  # what Celery can't run is no danger
            celery_signature(json.loads(json.dumps(given)), app=self.app).apply_async(**options)


@settings(max_examples=80, deadline=None)
@given(link=_links())
def test_what_is_accepted_runs_only_what_was_checked(sender: Celery, link: Any) -> None:
    try:
        check_options({"link": link})
    except InvalidSchedule:
        return
    allowed = {str(each["task"]) for each in reserved.linked({"link": link})}
    run = _Run(sender)
    run.run(link)
    for headers in run.headers:
        assert OTHER not in {str(headers.get(name)) for name in reserved.headers()}
        assert not any(name.startswith("pgbeat") for name in headers)
        assert headers["task"] in allowed | {"celery.chord_unlock"}


@settings(max_examples=20, deadline=None)
@given(canvas=_canvases)
def test_canvases_are_accepted_and_run(sender: Celery, canvas: Any) -> None:
    check_options({"link": canvas})
    run = _Run(sender)
    run.run(canvas)
    assert run.headers
