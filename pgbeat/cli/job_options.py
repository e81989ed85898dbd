"""The options that say how jobs are made and retried: of `jobs run`, templates and schedules."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import click

from pgbeat.cli import printing
from pgbeat.cli.options import CLEAR, Option, duration, json_array, json_object
from pgbeat.jobs import policies as job_policies
from pgbeat.jobs.policies import JobPolicy

F = TypeVar("F", bound=Callable[..., Any])

#: Above them in a command's help.
HEADING = "Its jobs"
#: Keys of a policy's JSON, by their option; `policy_options` says which differ for schedules.
KEYS = {
    "template": "template",
    "lane": "lane",
    "priority": "priority",
    "max-attempts": "max_attempts",
    "retry-base": "retry_base",
    "retry-cap": "retry_cap",
    "tag": "tags",
    "resource": "resources",
    "unique": "unique",
    "unique-key": "unique_key",
    "unique-for": "unique_for",
    "requires-approval": "requires_approval",
}
_OF_SCHEDULE = {"retry-base": "job-retry-base", "retry-cap": "job-retry-cap"}


def amount(text: str) -> tuple[str, float]:
    """What a job takes of a resource, as `gpu` or `gpu=0.5`; `click.BadParameter` for others."""
    name, _, number = text.partition("=")
    try:
        found = float(number or 1)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no amount of a resource; write for example 'gpu' or 'gpu=0.5'"
        ) from None
    return name.strip(), int(found) if found.is_integer() else found


_VALUES: dict[str, dict[str, Any]] = {
    "template": {"metavar": "NAME", "help": "The template that they are made from."},
    "lane": {"metavar": "NAME", "help": "The lane that they wait in."},
    "priority": {"type": click.IntRange(0, 255), "metavar": "N", "help": "The highest goes first."},
    "max-attempts": {"type": click.IntRange(1, 1000), "metavar": "N",
                     "help": "Attempts in all; 1: no retry."},
    "retry-base": {"type": duration, "metavar": "TIME",
                   "help": "The n-th retry of a job comes after base × 2^(n-1) …"},
    "retry-cap": {"type": duration, "metavar": "TIME", "help": "… but no later."},
    "tag": {"multiple": True, "metavar": "TAG", "help": "What lanes may count by; several times."},
    "resource": {"type": amount, "multiple": True, "metavar": "NAME[=AMOUNT]",
                 "help": "What one takes of it while it runs; several times."},
    "unique": {"is_flag": True, "default": None,
               "help": "One unfinished job with these arguments, no more."},
    "unique-key": {"metavar": "KEY", "help": "One unfinished job with this key, no more."},
    "unique-for": {"type": duration, "metavar": "TIME", "help": "Nor another within this time."},
    "requires-approval": {"is_flag": True, "default": None,
                          "help": "They wait until a person approves."},
}  # fmt: skip


def flag(key: str, *, of_schedule: bool = False) -> str:
    """The option that gives a key of a policy's JSON: `--tag` for `tags`."""
    name = next(name for name, other in KEYS.items() if other == key)
    return "--" + (_OF_SCHEDULE.get(name, name) if of_schedule else name)


def call_options(command: F) -> F:
    """Adds what says how a task is called: `args` and `kwargs`, and how it is published: `queue`
    and `options`; `None` where they aren't given."""
    for option in reversed(
        [
            click.option("--args", type=json_array, metavar="JSON",
                         help="Its positional arguments, an array."),
            click.option("--kwargs", type=json_object, metavar="JSON",
                         help="Its keyword arguments, an object."),
            click.option("--queue", metavar="QUEUE",
                         help="Where to publish; the task's own queue."),
            click.option("--options", type=json_object, metavar="JSON",
                         help="How to publish, an object: expires, headers …"),
        ]
    ):  # fmt: skip
        command = option(command)
    return command


def policy_options(*, template: bool = True, of_schedule: bool = False) -> Callable[[F], F]:
    """Adds the options of a job policy, whose parameters all begin with `job_`: `given_policy`
    takes them out. A schedule's `--retry-base` is another thing: there it is `--job-retry-base`."""

    def add(command: F) -> F:
        for name in reversed(KEYS):
            if name != "template" or template:
                long = flag(KEYS[name], of_schedule=of_schedule)
                option = click.option(
                    long, f"job_{KEYS[name]}", cls=Option, heading=HEADING, **_VALUES[name]
                )
                command = option(command)
        return command

    return add


def policy_clearing(command: F) -> F:
    """Adds, for `update`, a flag that clears each key of a schedule's policy."""
    for key in reversed(KEYS.values()):
        name = flag(key, of_schedule=True).removeprefix("--")
        clear = click.option(
            f"--no-{name}", f"no_job_{key}", is_flag=True, cls=Option, heading=CLEAR,
            help=f"Clear {name}.",
        )  # fmt: skip
        command = clear(command)
    return command


def cleared_keys(given: dict[str, Any], changes: Collection[str]) -> set[str]:
    """Takes the flags of `policy_clearing` out of what a command was given: keys to clear."""
    cleared = {key for key in KEYS.values() if given.pop(f"no_job_{key}")}
    for key in cleared & set(changes):
        name = flag(key, of_schedule=True)
        other = f"--no-{name.removeprefix('--')}"
        raise click.UsageError(f"{name} and {other} exclude each other")
    return cleared


def given_policy(given: dict[str, Any]) -> dict[str, Any]:
    """Takes the policy's options out of a command's. Returns those that are not `None` as the JSON
    object that `pgbeat.schedules.job_policy` holds. Raises `InvalidJob`, which lists every
    mistake."""
    found: dict[str, Any] = {}
    for key in KEYS.values():
        value = given.pop(f"job_{key}", None)
        if value is not None and value != ():
            found[key] = dict(value) if key == "resources" else value
    return job_policies.parse(found).as_json()


def in_words(job: Mapping[str, Any]) -> str:
    """A policy's JSON in words: `lane gpu, priority 3, 5 attempts`; as it is where it makes no
    sense."""
    policy, mistakes = job_policies.read(job)
    if mistakes:
        return printing.compact(job)
    words = [f"template {policy.template}"] if policy.template else []
    words += [f"lane {policy.lane}"] if policy.lane else []
    words += [] if policy.priority is None else [f"priority {policy.priority}"]
    if policy.max_attempts is not None:
        words.append(f"{policy.max_attempts} attempts" if policy.max_attempts > 1 else "no retry")
    if policy.retry_base is not None:
        words.append(f"retried after {printing.span(policy.retry_base, 4)}, doubled each time")
    if policy.retry_cap is not None:
        words.append(f"{printing.span(policy.retry_cap, 4)} at most")
    words += [f"tag {tag}" for tag in policy.tags or ()]
    words += [f"{amount:g} {name}" for name, amount in (policy.resources or {}).items()]
    if policy.unique_key is not None:
        words.append(f"unique as {policy.unique_key}")
    elif policy.unique or policy.unique_for:
        words.append("unique")
    if policy.unique_for:
        words.append(f"once in {printing.span(policy.unique_for, 4)}")
    words += ["with approval"] if policy.requires_approval else []
    return printing.line(", ".join(words))


def as_policy(given: dict[str, Any]) -> JobPolicy:
    """The same as a `JobPolicy`."""
    return job_policies.parse(given_policy(given))
