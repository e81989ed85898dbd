"""Finds the policies of tasks, by which whatever sends one of them makes a job.

    @app.task(pgbeat={"lane": "gpu", "unique": True})
    @app.task(pgbeat=pgbeat.TaskPolicy(lane="gpu", unique=True))

Both are the same; editors and type checkers know the keys of the second. The attribute `pgbeat` of
a task's class does the same. The setting `pgbeat_task_policies` has globs of tasks' names; the
first that matches applies. The task's own policy is stronger.

Besides the keys of other policies, these have `pin`: the task stays on the version that sends it.
A task's own may say that its calls run in batches (`pgbeat.jobs.policy.batches`).
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection

from pgbeat.config import is_own_broker, settings_of
from pgbeat.config.app_state import current_state
from pgbeat.config.task_options import OPTION, has_policies, own_policy
from pgbeat.errors import ConfigError, InvalidJob, Problem, Problems
from pgbeat.jobs.lanes import model as lanes
from pgbeat.jobs.policy import batches, policies
from pgbeat.jobs.policy.batches import Batch
from pgbeat.jobs.policy.policies import CommonOptions, JobPolicy, Length

if TYPE_CHECKING:
    from celery import Celery


class TaskPolicy(CommonOptions, total=False):
    """The policy of a task: `@app.task(pgbeat=pgbeat.TaskPolicy(lane="gpu"))`."""

    #: The task stays on the version that sends it.
    pin: bool | None
    #: So many calls run as one, with a list of them …
    batch: int | None
    #: … or fewer, once the oldest has waited so long.
    batch_after: Length | None
    #: The argument that all calls of a batch share, such as `kwargs.shop`.
    batch_by: str | None


def of_task(app: "Celery", name: str) -> JobPolicy | None:
    """Returns the policy of a task that the app has registered; `None` if it has none.

    Raises `InvalidJob` if it is invalid.
    """
    return known(app, name).policy


def is_pinned(app: "Celery", name: str) -> bool:
    """Returns whether a task stays on the version that sends it. Raises as `of_task`."""
    return known(app, name).is_pinned


class KnownPolicy(NamedTuple):
    """A task's policy, and the task's own option, of which it was read."""

    option: Any
    policy: JobPolicy | None
    is_pinned: bool = False
    batch: Batch | None = None


class _Policies(dict[str, KnownPolicy]):
    """Policies of an app's tasks by their names."""


def known(app: "Celery", name: str) -> KnownPolicy:
    """Returns a task's policy, with what else its option says. Raises as `of_task`."""
    state = current_state(app)
    policies_by_task = state.part(_Policies)
    option = own_policy(app, name)
    read = policies_by_task.get(name)
    if read is None or read.option is not option:
        read, problems = _read(name, option, state.settings.task_policies)
        if problems:
            raise InvalidJob(problems, subject=f"the policy of task {name!r}")
        policies_by_task[name] = read
    return read


def all_of(app: "Celery") -> dict[str, JobPolicy]:
    """Returns the policies of the app's tasks by their names.

    Raises `ConfigError` with all that is wrong. A broker that is not in pgbeat's database is, too.
    An app without any needs no settings of pgbeat's.
    """
    options = (getattr(task, OPTION, None) for task in app.tasks.values())
    if not has_policies(app) and all(option is None for option in options):
        return {}
    app.loader.import_default_modules()
    settings = settings_of(app)
    by_name: dict[str, JobPolicy] = {}
    problems = Problems()
    for name, task in sorted(app.tasks.items()):
        read, wrong = _read(name, getattr(task, OPTION, None), settings.task_policies)
        problems += [problem.within(f"task {name!r}") for problem in wrong]
        if read.policy is not None:
            by_name[name] = read.policy
    if by_name and not is_own_broker(app.conf, settings.url):
        message = (
            f"policies of tasks ({', '.join(by_name)}) need a broker in pgbeat's database: "
            "broker_url = 'pgbeat+postgresql://…'"
        )
        problems.add("broker_url", "conflict", message)
    problems.raise_if_any(ConfigError, subject="the policies of tasks are wrong")
    return by_name


def missing_lanes(
    connection: Connection, by_name: Mapping[str, JobPolicy], *, namespace: str
) -> dict[str, list[str]]:
    """Returns the lanes that policies name and that don't exist, with the names of the tasks."""
    tasks: dict[str, list[str]] = {}
    for name, policy in sorted(by_name.items()):
        if policy.lane is not None:
            tasks.setdefault(policy.lane, []).append(name)
    there = lanes.load(connection, tasks, namespace=namespace)
    return {lane: names for lane, names in sorted(tasks.items()) if lane not in there}


def _read(
    name: str, option: Any, by_glob: Mapping[str, Mapping[str, Any]]
) -> tuple[KnownPolicy, list[Problem]]:
    options = [settings for glob, settings in by_glob.items() if fnmatchcase(name, glob)][:1]
    if option is not None:
        options.insert(0, option)
    if not options or name.startswith(("celery.", "pgbeat.")):
        return KnownPolicy(option, None), []
    policy, pins, problems = JobPolicy(), [], []
    batch = None
    for settings in options:
        more, pin, own_batch, wrong = _read_one(settings, is_own=settings is option)
        policy = policy.over(more)
        pins += [pin] if pin is not None else []
        batch = batch or own_batch
        problems += wrong
    if batch is not None:
        problems += batches.conflicts(policy)
    return KnownPolicy(option, policy, bool(pins and pins[0]), batch), problems


def _read_one(
    option: Any, *, is_own: bool
) -> tuple[JobPolicy, bool | None, Batch | None, list[Problem]]:
    if not isinstance(option, Mapping):
        message = f"must be a mapping such as {{'lane': 'gpu'}}, got {option!r}"
        return JobPolicy(), None, None, [Problem(OPTION, "malformed", message)]
    keys = {**option}
    pin = keys.pop("pin", None)
    misplaced = [] if is_own else batches.refuse_on_glob(list(keys))
    batch, mistakes = batches.take(keys)
    policy, problems = policies.read(keys)
    problems += misplaced or mistakes
    if policy.template is not None:
        message = "template: a template names its task; a task's policy can't name a template"
        problems.append(Problem("template", "conflict", message))
    if pin not in (None, True, False):
        message = f"pin: {pin!r} is neither true nor false"
        problems.append(Problem("pin", "malformed", message))
    return policy, pin, batch, problems
