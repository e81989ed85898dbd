"""Provides `pgbeat.submit_many`, by which programs make many jobs at once."""

from collections.abc import Iterable
from itertools import chain, islice
from typing import Any, Unpack

from celery import Celery, current_app

from pgbeat.access import actors
from pgbeat.access.actors import Actor
from pgbeat.broker.publishing.transaction import Opened
from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.config import settings_of
from pgbeat.jobs.checks import user_limits
from pgbeat.jobs.flow import depends_on
from pgbeat.jobs.policy import policies as job_policies
from pgbeat.jobs.policy.policies import JobPolicy, PolicyOptions
from pgbeat.jobs.preparing import members, prepare
from pgbeat.jobs.preparing.defaults import JobDefaults
from pgbeat.jobs.preparing.prepare import JobSpec
from pgbeat.jobs.writing import submissions

#: Jobs that are written by one statement.
_BATCH = 1_000


def submit(
    unit: UnitOfWork, jobs: Iterable[Any], policy: JobPolicy, *, job_source: str
) -> list[str]:
    """Makes jobs of the actor's, and returns their ids. Raises as `submit_many`."""
    ids: list[str] = []
    links = 0
    numbered = enumerate(jobs)
    while batch := list(islice(numbered, _BATCH)):
        specs: list[tuple[int, JobSpec]] = []
        with members.numbered("job") as at:
            for at.number, member in batch:
                specs.append((at.number, members.spec(member, policy)))
                links += user_limits.link_count(unit.actor, specs[-1][1].options)
        user_limits.require_few(unit.actor, unit.settings, len(ids) + len(batch) + links)
        ids += _write(unit, specs, job_source)
    if ids:
        unit.record_action("create", "job", f"{len(ids)} jobs", None, {"jobs": len(ids)})
    return ids


def _write(unit: UnitOfWork, specs: list[tuple[int, JobSpec]], job_source: str) -> list[str]:
    policies = {id(spec.policy): spec.policy for _, spec in specs}
    defaults = JobDefaults(unit.connection, unit.settings, policies.values())
    preparer = prepare.Preparer(unit.require_app(), defaults, unit.actor, job_source)
    prepared: list[prepare.PreparedJob] = []
    with members.numbered("job") as at:
        for at.number, spec in specs:
            new = preparer.prepare(spec)
            if not spec.is_alone:
                new = depends_on.blocked(new, spec, depends_on.existing(unit, spec))
            prepared.append(new)
    return submissions.write_many(unit, prepared)


def submit_many(
    jobs: Iterable[Any],
    *,
    connection: Opened | None = None,
    app: Celery | None = None,
    created_by: str | None = None,
    job_source: str = "user_api",
    **policy: Unpack[PolicyOptions],
) -> list[str]:
    """Makes many jobs in one transaction: all of them, or none.

        ids = pgbeat.submit_many((resize.s(n) for n in range(10_000)), lane="gpu")

    Each of `jobs` is a task or its name, a signature, or a mapping with what `pgbeat.submit` takes,
    as members of `pgbeat.submit_group` are; but these are independent of each other. `policy` holds
    for all, as far as a mapping doesn't say otherwise; `connection`, `created_by` and `policy` are
    those of `pgbeat.submit`. An iterator is read a thousand jobs at a time.

    Returns the ids of the jobs, Celery's task ids, in the same order; for a unique key that an
    unfinished job has, that job's. Raises `InvalidJob`, `UnknownTask` or `InvalidSchedule`
    for an invalid job, numbered from 0, `BrokerUnavailable`, and SQLAlchemy's `OperationalError`
    while the database is away.
    """
    if isinstance(jobs, str | bytes) or not isinstance(jobs, Iterable):
        raise TypeError(f"jobs must be an iterable of jobs, got {jobs!r}")
    several = iter(jobs)
    first = list(islice(several, _BATCH))
    app = app or members.app_of(first) or current_app._get_current_object()
    app.loader.import_default_modules()
    common = job_policies.parse(policy)
    actor = Actor(created_by) if created_by else actors.user()
    with (
        submissions.opened_unit(app, settings_of(app), actor, connection) as unit,
        submissions.transaction(unit) as ids,
    ):
        ids += submit(unit, chain(first, several), common, job_source=job_source)
    return ids
