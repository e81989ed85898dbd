"""Permissions: who may do what with which job."""

from collections.abc import Callable
from typing import get_args

import pytest

from pgbeat.access import actors
from pgbeat.access.actors import Actor
from pgbeat.errors import Forbidden, InvalidTransition
from pgbeat.jobs.checks.permissions import Verb, require, require_admin, visible
from pgbeat.jobs.rows import model as jobs
from pgbeat.jobs.rows.filters import Filter
from pgbeat.jobs.rows.model import Job
from pgbeat.jobs.verbs import changes, control
from tests.support.command_line import Sql
from tests.support.jobs import ADMIN, ALICE, BOB, JobControl
from tests.support.rows import make_job

VERBS = get_args(Verb)
#: What each may do with which job; an administrator everything.
MATRIX = {
    "alice's": {ALICE: {*VERBS} - {"approve"}, BOB: set[str]()},
    "of a schedule that alice triggered": {ALICE: {"show", "cancel"}, BOB: set[str]()},
    "the system's": {ALICE: set[str](), BOB: set[str]()},
}


@pytest.fixture
def found(sql: Sql, job_control: JobControl) -> dict[str, Job]:
    """A job of each kind."""
    system = {"is_system_job": True, "job_source": "scheduled_task", "schedule": "nightly"}
    ids = {
        "alice's": make_job(sql),
        "of a schedule that alice triggered": make_job(sql, **system),
        "the system's": make_job(sql, **system | {"created_by": "system:scheduler:X"}),
    }
    return {kind: jobs.get(job_control.connection, job_id) for kind, job_id in ids.items()}


def test_every_actor_verb_and_kind_of_job(found: dict[str, Job]) -> None:
    for kind, job in found.items():
        for actor in (ADMIN, ALICE, BOB):
            allowed = set()
            for verb in VERBS:
                try:
                    require(actor, verb, job)
                except Forbidden as error:
                    assert str(job.id) in str(error) and verb in str(error)
                    assert error.is_for_admins
                else:
                    allowed.add(verb)
            assert allowed == ({*VERBS} if actor.is_admin else MATRIX[kind][actor]), (kind, actor)


def test_the_reason_is_given(found: dict[str, Job]) -> None:
    said = []
    for actor, verb, kind in (
        (ALICE, "delete", "of a schedule that alice triggered"),
        (BOB, "delete", "alice's"),
        (ALICE, "approve", "alice's"),
    ):
        with pytest.raises(Forbidden) as refused:
            require(actor, verb, found[kind])  # type: ignore[arg-type]
        said.append(str(refused.value).split(": ", 1)[1].split("; ")[0])
    assert said == [
        "it is a system job (of schedule 'nightly')",
        "it is a job of 'user:alice', and you are 'user:bob'",
        "it is your own job",
    ]


def test_every_verb_asks(sql: Sql, job_control: JobControl) -> None:
    """Nothing is done for who may not, and the job is as it was."""
    verbs: dict[str, Callable[[Actor, str], object]] = {
        "cancel": lambda who, job: control.cancel(job_control.unit(who), job),
        "pause": lambda who, job: control.pause(job_control.unit(who), job),
        "resume": lambda who, job: control.resume(job_control.unit(who), job),
        "approve": lambda who, job: control.approve(job_control.unit(who), job),
        "retry": lambda who, job: control.retry(job_control.unit(who), job, job_source="user_api"),
        "update": lambda who, job: changes.update(
            job_control.unit(who), job, values={"priority": 1}
        ),
        "move": lambda who, job: control.move(job_control.unit(who), job, "front"),
        "delete": lambda who, job: control.delete(job_control.unit(who), job),
    }
    assert {*verbs, "show"} == {*VERBS}
    for name, verb in verbs.items():
        for state in ("pending", "failed", "paused"):
            job = make_job(sql, state, is_system_job=True, lane="l")
            before = sql("SELECT * FROM pgbeat.jobs WHERE id = %s", job)
            with pytest.raises(Forbidden, match=f"{name} job {job}"):
                verb(BOB, job)
            assert sql("SELECT * FROM pgbeat.jobs WHERE id = %s", job) == before
    with pytest.raises(InvalidTransition):
        verbs["approve"](ADMIN, make_job(sql, "failed"))


def test_who_sees_which(job_control: JobControl, found: dict[str, Job]) -> None:
    def seen(actor: Actor, which: Filter) -> set[str]:
        return {str(j.id) for j in jobs.listing(job_control.connection, visible(actor, which))}

    everything, own = Filter(), {str(job.id) for job in found.values()}
    assert seen(ADMIN, everything) == own
    assert seen(ALICE, everything) == own - {str(found["the system's"].id)}
    assert seen(BOB, everything) == set()
    assert seen(ADMIN, Filter(created_by=ALICE.name)) == seen(ALICE, everything)
    with pytest.raises(Forbidden):
        visible(BOB, Filter(created_by=ALICE.name))


def test_what_is_the_administrators() -> None:
    require_admin(ADMIN, "change lane 'gpu'")
    with pytest.raises(Forbidden, match="change lane 'gpu'"):
        require_admin(ALICE, "change lane 'gpu'")


def test_who_runs_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "carol")
    assert actors.user() == Actor("user:carol")
    assert actors.user(is_admin=True).is_admin
