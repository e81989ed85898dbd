"""The list form of a file, `schedulers:`, which names functions instead of tasks."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from pgbeat.jobs.preparing import placeholders
from pgbeat.schedules.files.documents import DocumentNode, Notes
from pgbeat.schedules.files.fields import FIELDS
from pgbeat.schedules.files.kinds import Kind, Switch, Whole, shown
from pgbeat.suggest import did_you_mean

#: Keys with a special meaning in this form.
OWN = (
    "name",
    "trigger",
    "interval_minutes",
    "function",
    "args",
    "retry_on_failure",
    "max_retries",
    "timeout_seconds",
)
#: What this form calls fields.
WORDS = {"every": "interval_minutes"}
#: The highest `max_attempts` of a job.
_MOST_ATTEMPTS = 1000
#: Fields that this form doesn't have, and what to use instead.
_OTHER_WORDS = {
    "task": "function",
    "launcher": "function",
    "kwargs": "args",
    "every": "interval_minutes",
    "once_at": "interval_minutes or cron",
    "solar": "interval_minutes or cron",
    "rrule": "interval_minutes or cron",
    "after": "interval_minutes or cron",
}
#: All keys; the others are fields with their usual meaning.
KEYS = (*OWN, *(name for name in FIELDS if name not in OWN and name not in _OTHER_WORDS))
_LONGEST = 36_500 * 24 * 60


class Value(NamedTuple):
    """A field, its value as a row has it, and the node that gives it."""

    field: str
    value: Any
    node: DocumentNode


def rest(node: DocumentNode) -> DocumentNode:
    """Returns the entry without the keys that are special in this form."""
    kept = {k: e for k, e in node.value.items() if k not in OWN and k not in _OTHER_WORDS}
    return DocumentNode(kept, node.line, node.column)


class FunctionEntry:
    """An entry of `schedulers:`, and the fields that its special keys stand for."""

    def __init__(self, name: str, key: DocumentNode, node: DocumentNode, notes: Notes) -> None:
        self._name, self._key, self._notes = name, key, notes
        self._given = {k: e.node for k, e in node.value.items() if e.node.value is not None}
        for word, entry in node.value.items():
            if word in _OTHER_WORDS:
                other = _OTHER_WORDS[word]
                self._note(entry.key, f"`schedulers:` has no {word}; use {other}", word)

    def values(
        self, functions: Mapping[str, str], options: Mapping[str, Any], job: Mapping[str, Any]
    ) -> Iterator[Value]:
        """Yields fields, and notes what is wrong with them.

        `functions` are the tasks by the names of functions; `options` and `job` are the options
        and job policy that the entry adds to.
        """
        yield from self._when()
        yield from self._what(functions)
        yield from self._timeout(options)
        yield from self._attempts(job)

    def _when(self) -> Iterator[Value]:
        trigger, minutes = self._given.get("trigger"), self._given.get("interval_minutes")
        word = None if trigger is None else trigger.plain()
        if word == "cron":
            self._check_trigger("cron", "cron", "interval_minutes", "cron")
            minutes = None
        elif word == "interval":
            self._check_trigger("interval", "interval_minutes", "cron", "every")
            if "cron" in self._given:
                yield Value("cron", None, self._given["cron"])
        elif trigger is not None:
            self._note(trigger, f"trigger is {shown(word)}; it must be interval or cron")
        if minutes is not None:
            number = minutes.plain()
            if isinstance(number, bool) or not isinstance(number, int | float):
                message = f"interval_minutes is {shown(number)}, which is no number"
                self._note(minutes, message, "every")
            elif not 0 < number <= _LONGEST:
                message = f"interval_minutes is {number}; it must be above 0, at most {_LONGEST}"
                self._note(minutes, message, "every")
            else:
                yield Value("every", timedelta(minutes=number), minutes)

    def _check_trigger(self, word: str, wanted: str, other: str, field: str) -> None:
        if wanted not in self._given:
            message = f"trigger is {word}, and there is no {wanted}"
            self._note(self._given["trigger"], message, field)
        elif other in self._given:
            self._note(self._given[other], f"trigger is {word}, and there is {other}")

    def _what(self, functions: Mapping[str, str]) -> Iterator[Value]:
        function = self._given.get("function")
        if function is None:
            self._note(self._key, "it has no function", "task")
        elif isinstance(function.value, str) and function.value in functions:
            yield Value("task", functions[function.value], function)
        else:
            name = function.plain()
            hint = did_you_mean(str(name), functions)
            listed = ", ".join(sorted(functions)) or "nothing"
            self._note(
                function,
                f"function {shown(name)} is not allowed; {hint + ' ' if hint else ''}"
                f"pgbeat_allowed_functions has {listed}",
                "task",
            )
        args = self._given.get("args")
        if args is not None:
            field = "args" if isinstance(args.value, list) else "kwargs"
            try:
                value = FIELDS[field].kind.read(args.plain())
            except ValueError as error:
                self._note(args, f"args {error}", field)
                return
            wrong = "; ".join(problem.message for problem in placeholders.problems(value, "args"))
            if wrong:
                self._note(args, wrong, field)
            else:
                yield Value(field, value, args)

    def _timeout(self, options: Mapping[str, Any]) -> Iterator[Value]:
        limit = self._read("timeout_seconds", Whole(1, 2**31 - 1))
        if limit is not None:
            node = self._given["timeout_seconds"]
            yield Value("options", {**options, "time_limit": limit}, node)

    def _attempts(self, job: Mapping[str, Any]) -> Iterator[Value]:
        """Yields the job's attempts: `max_retries` is about jobs here, not about decisions."""
        key, number = "max_retries", self._read("max_retries", Whole(0, _MOST_ATTEMPTS - 1))
        if self._read("retry_on_failure", Switch()) is False:
            key, number = "retry_on_failure", 0
        if number is None:
            return
        policy = self._given.get("job_policy")
        if policy is not None and isinstance(policy.value, dict) and "max_attempts" in policy.value:
            message = f"it has both {key} and job_policy.max_attempts; keep one"
            self._note(self._given[key], message, "job_policy")
            return
        yield Value("job_policy", {**job, "max_attempts": number + 1}, self._given[key])

    def _read(self, key: str, kind: Kind) -> Any:
        """Returns a key's value; `None` if it is missing or, with a note, invalid."""
        node = self._given.get(key)
        try:
            return None if node is None else kind.read(node.plain())
        except ValueError as error:
            self._note(node or self._key, f"{key} {error}")
            return None

    def _note(self, node: DocumentNode, message: str, field: str = "") -> None:
        self._notes.at(node, message, self._name, field)
