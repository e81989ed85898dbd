"""Masks arguments and results of tasks from all but administrators.

`pgbeat_redact = {"billing.*": ["card"], "users.login": "*"}` names keyword arguments by task; so
does the attribute `pgbeat_redact` of a task. The API, the console and the command line pass the
rows that they show through a `Redactor`. The database keeps the values.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from inspect import Parameter, signature
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pgbeat.access.actors import Actor
from pgbeat.config.readers import argument_names

#: What is shown instead of a value.
MASK = "[masked]"
#: The rule by which nothing of a task's arguments, results and errors is shown.
ALL = "*"
#: The attribute of a task.
OPTION = "pgbeat_redact"

#: A named tuple, such as `Job`.
Row = TypeVar("Row")
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
#: Options of a message in which Celery writes the arguments.
_REPRS = ("argsrepr", "kwargsrepr")
_ERROR = re.compile(r"[A-Za-z_][\w.]*(?=[:(])")


class Redactor:
    """Masks what an actor may not see: for administrators nothing.

    `tasks` are those that the app has registered, by name. Of tasks that it doesn't know, all
    positional arguments are masked if a rule names some of the arguments.
    """

    def __init__(
        self, actor: Actor, rules: Mapping[str, Sequence[str]], tasks: Mapping[str, Any]
    ) -> None:
        self.actor, self._is_off = actor, actor.is_admin
        self._rules, self._tasks = rules, tasks
        self._known: dict[str, tuple[str, ...]] = {}

    def names(self, task: str | None) -> tuple[str, ...]:
        """Returns the globs of the arguments that are masked; `ALL` among them masks everything.

        Every rule that fits the task applies. If the task is unknown and there is any rule, all is
        masked.
        """
        if self._is_off:
            return ()
        if task is None:
            options = (getattr(task, OPTION, None) for task in self._tasks.values())
            return (ALL,) if self._rules or any(options) else ()
        if task not in self._known:
            patterns = [
                pattern
                for glob, names in self._rules.items()
                if fnmatchcase(task.lower(), glob.lower())
                for pattern in names
            ]
            patterns += argument_names(getattr(self._tasks.get(task), OPTION, None) or ())
            self._known[task] = tuple(patterns)
        return self._known[task]

    def tasks_with_rules(self, *, of_errors: bool = False) -> set[str]:
        """Returns globs that match all tasks with something masked, and maybe others."""
        if self._is_off:
            return set()
        rules = [
            (glob.split("[")[0] + "*" * ("[" in glob), names) for glob, names in self._rules.items()
        ]
        for name, task in self._tasks.items():
            rules.append((name, argument_names(getattr(task, OPTION, None) or ())))
        return {glob for glob, names in rules if ALL in names or (names and not of_errors)}

    def row(self, row: Row, task: str | None) -> Row:
        """Returns a row of a task (a job, an execution, a schedule, a template …), masked."""
        if self._is_off or row is None:
            return row
        plain: Any = row
        changes = self.columns(plain._asdict(), task)
        if {"traceback", "metadata"} <= set(plain._fields):  # of an execution: what it reported
            names = self.names(task)
            hidden = (*names, "steps_out_of_order") if names else ()  # it quotes keys of events
            changes["metadata"] = {} if ALL in names else self._inner(plain.metadata, hidden)
            changes["result"] = self.whole(task, plain.result)
        if getattr(plain, "completed_at", None):  # of a schedule with no time left: that is why
            changes.pop("disabled_reason", None)
        masked: Row = plain._replace(**changes)
        return masked

    def columns(self, row: Mapping[str, Any], task: str | None) -> dict[str, Any]:
        """Returns those columns of a row that may have to be masked, masked."""
        if self._is_off:
            return {}
        return {
            name: mask(self, task, row[name])
            for name, mask in _FIELDS.items()
            if row.get(name) is not None
        }

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Returns rows that have the column `task`, masked."""
        return [self.row(row, getattr(row, "task", None)) for row in rows]

    def args(self, task: str | None, args: Sequence[Any]) -> list[Any]:
        """Returns positional arguments, which are masked by the names of the task's parameters."""
        names = self.names(task)
        if not names or not args:
            return [self._inner(value, ()) for value in args] if args else list(args)
        known = self._parameters(task)
        return [
            MASK if name is None or _is_named(name, names) else self._inner(value, names)
            for value, name in zip(args, [*known, *[None] * len(args)], strict=False)
        ]

    def _parameters(self, task: str | None) -> list[str]:
        try:
            parameters = signature(self._tasks[task or ""].run).parameters.values()
        except (KeyError, AttributeError, TypeError, ValueError):
            return []
        return [parameter.name for parameter in parameters if parameter.kind in _POSITIONAL]

    def kwargs(self, task: str | None, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns keyword arguments; keys of those names inside of them are masked, too."""
        masked: dict[str, Any] = self._inner(dict(kwargs), self.names(task), is_call=True)
        return masked

    def options(self, task: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns options of a message. Callbacks are masked by the rules of their own tasks."""
        names = self.names(task)
        return {
            key: MASK if names and key in _REPRS else self._inner(value, ())
            for key, value in options.items()
        }

    def value(self, task: str | None, value: Any) -> Any:
        """Returns a result or a checkpoint."""
        names = self.names(task)
        return MASK if ALL in names else self._inner(value, names)

    def whole(self, task: str | None, value: Any) -> Any:
        """Returns a value whose parts have no names, masked if the task has any rule.

        Such are a message, a result's `repr`, and a unique key, which may be a hash of arguments.
        """
        return MASK if value is not None and self.names(task) else value

    def artifacts(self, task: str | None, artifacts: list[str]) -> list[str]:
        """Returns the artifacts of a job."""
        return [] if self._hides(task) else artifacts

    def text(self, task: str | None, text: Any) -> Any:
        """Returns a text that a task wrote, such as a traceback."""
        if not isinstance(text, str):  # of a job: the message that waits with it
            return self.whole(task, text)
        return MASK if self._hides(task) else text

    def error(self, task: str | None, error: str) -> str:
        """Returns an error; of one that is masked, the name of its class stays."""
        if not self._hides(task):
            return error
        kind = _ERROR.match(error)
        return f"{kind[0]}: {MASK}" if kind else MASK

    def url(self, task: str | None, url: str) -> str:
        """Returns the host of a URL, whose path is a secret as a rule."""
        if self._is_off:
            return url
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname}/{MASK}"

    def hint(self, task: str | None, hint: str) -> str:
        """Returns a secret's beginning and end."""
        return hint if self._is_off else MASK

    def audited(self, record: Any) -> Any:
        """Returns a record of the audit log, masked by the rules of the tasks before and after."""
        if self._is_off:
            return record
        before, after = record.before, record.after
        named = [
            state["task"]
            for state in (before, after)
            if isinstance(state, dict) and "task" in state
        ]
        for task in named or [None]:
            task = task if isinstance(task, str) else None
            before, after = self._state(before, task), self._state(after, task)
        subject = record.subject
        if record.kind == "event":
            subject = self.whole(None, subject)
        return record._replace(before=before, after=after, subject=subject)

    def mask_errors(self, nodes: Iterable[Any]) -> None:
        """Masks the errors of nodes of a tree of jobs, in place."""
        for node in nodes:
            if node.error is not None:
                node.error = self.error(node.name, node.error)

    def tick(self, tick: Any, task: str | None) -> Any:
        """Returns a tick of a schedule of that task; its jobs' errors are masked by their own."""
        error = tick.error and self.error(task, tick.error)
        jobs = tuple(
            replace(job, error=job.error and self.error(job.task, job.error)) for job in tick.jobs
        )
        job_error = jobs[0].error if jobs else None
        return replace(tick, error=error, job_error=job_error, jobs=jobs)

    def health(self, health: Any, task: str | None) -> Any:
        """Returns the health of a schedule of that task; its newest job may be another task's."""
        task = health.job_task or task
        if health.error is None or not self._hides(task):
            return health
        error = self.error(task, health.error)
        return health._replace(error=error, summary=health.summary.replace(health.error, error))

    def _state(self, state: Any, task: str | None) -> Any:
        if not isinstance(state, dict):
            return state
        masks = {**_FIELDS, "url": Redactor.url, "secret_hint": Redactor.hint}
        masks["forgotten_steps"] = Redactor.whole  # some are keys of events
        masks["why"] = Redactor.error  # of a decision
        return {
            key: masks[key](self, task, value) if key in masks and value is not None else value
            for key, value in state.items()
        }

    def _hides(self, task: str | None) -> bool:
        return ALL in self.names(task)

    def _inner(self, value: Any, names: Sequence[str], *, is_call: bool = False) -> Any:
        """Masks keys of those names at any depth, and the arguments of signatures of tasks."""
        if isinstance(value, list | tuple):
            return [self._inner(item, names) for item in value]
        if not isinstance(value, dict):
            return value
        inner = {
            key: MASK if _is_named(key, names) else self._inner(item, names)
            for key, item in value.items()
        }
        task = value.get("task")
        if not is_call and isinstance(task, str) and self.names(task):
            if isinstance(value.get("args"), list | tuple):
                inner["args"] = self.args(task, value["args"])
            if isinstance(value.get("kwargs"), dict):
                inner["kwargs"] = self.kwargs(task, value["kwargs"])
        return inner


def _is_named(name: object, names: Sequence[str]) -> bool:
    return any(fnmatchcase(str(name).lower(), pattern.lower()) for pattern in names)


#: How the columns of rows are masked.
_FIELDS: dict[str, Any] = {
    "args": lambda redactor, task, value: (
        redactor.args(task, value) if isinstance(value, list | tuple) else MASK
    ),
    "kwargs": lambda redactor, task, value: (
        redactor.kwargs(task, value) if isinstance(value, dict) else MASK
    ),
    "options": lambda redactor, task, value: (
        redactor.options(task, value) if isinstance(value, dict) else MASK
    ),
    "checkpoint": Redactor.value,
    "result": Redactor.value,
    "value": Redactor.value,
    "error": Redactor.error,
    "last_error": Redactor.error,
    "traceback": Redactor.text,
    "paused_reason": Redactor.text,  # these two may quote an error
    "disabled_reason": Redactor.text,
    "progress_message": Redactor.text,
    "message": Redactor.text,
    "canvas": lambda redactor, task, value: redactor._inner(value, ()),
    "check_in_url": Redactor.url,
    "unique_key": Redactor.whole,
}
