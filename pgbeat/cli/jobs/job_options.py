"""The options of job policies: for `jobs run`, templates and schedules."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import click

from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.options import (
    CLEAR,
    FLAG,
    JSON_ARRAY,
    JSON_OBJECT,
    LENGTH,
    MOMENT,
    F,
    Kind,
    adding,
    headed,
    option,
    whole,
)
from pgbeat.jobs.policy import policies as job_policies


def amount(text: str) -> tuple[str, float]:
    """Reads an amount of a resource, `gpu` or `gpu=0.5`."""
    name, _, number = text.partition("=")
    try:
        value = float(number or 1)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not an amount of a resource; write for example 'gpu' or 'gpu=0.5'"
        ) from None
    return name.strip(), int(value) if value.is_integer() else value


_ASKED = {**FLAG, "default": None}
#: The kind of each option and its help.
_VALUES: dict[str, tuple[Kind | str, str]] = {
    "template": ("NAME", "The template to make jobs from."),
    "lane": ("NAME", "The lane to wait in."),
    "priority": (whole(0, 255), "The highest goes first."),
    "max-attempts": (whole(1, 1000), "Attempts in total; 1 for no retry."),
    "retry-base": (LENGTH, "The n-th retry of a job comes after base × 2^(n-1) …"),
    "retry-cap": (LENGTH, "… but no later."),
    "tag": ({"multiple": True, "metavar": "TAG"}, "A tag; lanes may count it."),
    "resource": (
        {"type": amount, "multiple": True, "metavar": "NAME[=AMOUNT]"},
        "How much of a resource a job uses; may be repeated.",
    ),
    "unique": (_ASKED, "At most one unfinished job with these arguments."),
    "unique-key": ("KEY", "At most one unfinished job with it."),
    "unique-for": (LENGTH, "Nor another within this time."),
    "requires-approval": (_ASKED, "Wait until an administrator approves."),
    "must-start-within": (LENGTH, "Late if it has not started by then …"),
    "must-end-within": (LENGTH, "… or not ended."),
}


#: The keys of a policy's JSON, by option.
KEYS = {
    name: {"tag": "tags", "resource": "resources"}.get(name, name.replace("-", "_"))
    for name in _VALUES
}
#: A schedule's options, by key: its `--retry-base` is its own, that of its jobs `--job-retry-base`.
_OF_SCHEDULE = {
    key: f"job-{name}" if name.startswith("retry-") else name for name, key in KEYS.items()
}


#: Adds how to call a task.
arguments = adding(
    option("--args", JSON_ARRAY, "Its positional arguments, an array."),
    option("--kwargs", JSON_OBJECT, "Its keyword arguments, an object."),
)
#: Adds how to call a task, and how to publish it, `queue` and `options`.
call_options = adding(
    arguments,
    option("--queue", "QUEUE", "Where to publish; by default the task's queue."),
    option("--options", JSON_OBJECT, "Options to publish with, an object: expires, headers …"),
)
#: Adds when a job runs, `run_at` or `countdown`.
timing = adding(
    option("--at", MOMENT, "Not before this time.", "run_at"),
    option("--in", LENGTH, "Not before this much time has passed.", "countdown"),
)


def some_options(*names: str) -> Callable[[F], F]:
    """Returns a decorator that adds options of a job policy, by their keys."""
    return adding(*(option(f"--{name}", *_VALUES[name], KEYS[name]) for name in names))


def policy_options(*, template: bool = True, of_schedule: bool = False) -> Callable[[F], F]:
    """Returns a decorator that adds the options of a job policy, for `given_policy`."""
    flags = _OF_SCHEDULE if of_schedule else {key: name for name, key in KEYS.items()}
    return adding(
        *(
            headed("Its jobs")(f"--{flags[key]}", *_VALUES[name], f"job_{key}")
            for name, key in KEYS.items()
            if name != "template" or template
        )
    )


#: Adds a flag for each key of a schedule's job policy, which clears it.
policy_clearing = adding(
    *(
        headed(CLEAR)(f"--no-{name}", FLAG, f"Clear {name}.", f"no_job_{key}")
        for key, name in _OF_SCHEDULE.items()
    )
)


def cleared_keys(options: dict[str, Any], changes: Collection[str]) -> set[str]:
    """Takes the flags of `policy_clearing` out of a command's parameters; returns their keys."""
    cleared = {key for key in KEYS.values() if options.pop(f"no_job_{key}")}
    for key in cleared & set(changes):
        name = _OF_SCHEDULE[key]
        raise click.UsageError(f"--{name} and --no-{name} exclude each other")
    return cleared


def given_policy(options: dict[str, Any]) -> dict[str, Any]:
    """Takes the policy's options out of a command's parameters; returns the policy as JSON.

    Raises `InvalidJob`, which lists every mistake.
    """
    policy: dict[str, Any] = {}
    for key in KEYS.values():
        value = options.pop(f"job_{key}", None)
        if value is not None and value != ():
            policy[key] = dict(value) if key == "resources" else value
    return job_policies.parse(policy).as_json()


def in_words(job: Mapping[str, Any]) -> str:
    """Returns a policy in words: `lane gpu, priority 3, 5 attempts`; an invalid one as JSON."""
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
    for name, span in (("start", policy.must_start_within), ("end", policy.must_end_within)):
        words += [] if span is None else [f"must {name} within {printing.span(span, 4)}"]
    return printing.line(", ".join(words))
