"""The list form of a file, `schedulers:`: a function and how often, for a task and when."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from pgbeat.schedules.files.documents import Node, Notes
from pgbeat.schedules.files.fields import FIELDS
from pgbeat.schedules.files.kinds import Switch, Whole, shown
from pgbeat.suggest import did_you_mean

#: Keys that have a meaning of their own here.
OWN = (
    "name", "trigger", "interval_minutes", "function", "args", "retry_on_failure", "max_retries",
    "timeout_seconds",
)  # fmt: skip
#: What a job's `max_attempts` may be.
_MOST_ATTEMPTS = 1000
#: Fields that have another word here, or none: the function says what is launched.
_OTHER_WORDS = {
    "task": "function", "launcher": "function", "kwargs": "args", "every": "interval_minutes",
    "once_at": "interval_minutes or cron", "solar": "interval_minutes or cron",
    "rrule": "interval_minutes or cron", "after": "interval_minutes or cron",
}  # fmt: skip
#: The other fields mean what they mean everywhere.
KEYS = (*OWN, *(name for name in FIELDS if name not in OWN and name not in _OTHER_WORDS))
_WORDS = {"interval": "interval_minutes", "cron": "cron"}
_LONGEST = 36_500 * 24 * 60


class Value(NamedTuple):
    """A field's value as a row has it, and the node that says so."""

    field: str
    value: Any
    node: Node


def rest(node: Node) -> Node:
    """The entry without what has a meaning of its own here."""
    kept = {k: e for k, e in node.value.items() if k not in OWN and k not in _OTHER_WORDS}
    return Node(kept, node.line, node.column)


class FunctionEntry:
    """One of `schedulers:`. `values` are what it says in words of its own."""

    def __init__(self, name: str, key: Node, node: Node, notes: Notes) -> None:
        self._name, self._key, self._notes = name, key, notes
        self._given = {k: e.node for k, e in node.value.items() if e.node.value is not None}
        for word, entry in node.value.items():
            if word in _OTHER_WORDS:
                other = _OTHER_WORDS[word]
                self._note(entry.key, f"`schedulers:` has no {word}; use {other}", word)

    def values(
        self,
        functions: Mapping[str, str],
        options: Mapping[str, Any],
        job: Mapping[str, Any],
    ) -> Iterator[Value]:
        """Yields fields, and notes what is wrong with them.

        `functions` may be named, and are tasks by these names; `options` and `job_policy` hold
        without what the entry adds to them.
        """
        yield from self._when()
        yield from self._what(functions)
        yield from self._timeout(options)
        yield from self._attempts(job)

    def _when(self) -> Iterator[Value]:
        trigger, minutes = self._given.get("trigger"), self._given.get("interval_minutes")
        if trigger is not None:
            word = trigger.plain()
            if not isinstance(word, str) or word not in _WORDS:
                self._note(trigger, f"trigger is {shown(word)}; it must be interval or cron")
            else:
                wanted = _WORDS[word]
                (other,) = set(_WORDS.values()) - {wanted}
                if wanted not in self._given:
                    field = "cron" if word == "cron" else "every"
                    self._note(trigger, f"trigger is {word}, and there is no {wanted}", field)
                elif other in self._given:
                    self._note(self._given[other], f"trigger is {word}, and there is {other}")
                if other == "cron" and "cron" in self._given:
                    yield Value("cron", None, self._given["cron"])
                elif other != "cron":
                    minutes = None
        if minutes is not None:
            number = minutes.plain()
            if isinstance(number, bool) or not isinstance(number, int | float):
                said = f"interval_minutes is {shown(number)}, which is no number"
                self._note(minutes, said, "every")
            elif not 0 < number <= _LONGEST:
                said = f"interval_minutes is {number}; it must be above 0, at most {_LONGEST}"
                self._note(minutes, said, "every")
            else:
                yield Value("every", timedelta(minutes=number), minutes)

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
                yield Value(field, FIELDS[field].kind.read(args.plain()), args)
            except ValueError as error:
                self._note(args, f"args {error}", field)

    def _timeout(self, options: Mapping[str, Any]) -> Iterator[Value]:
        timeout = self._given.get("timeout_seconds")
        if timeout is not None:
            try:
                limit = Whole(1, 2**31 - 1).read(timeout.plain())
            except ValueError as error:
                self._note(timeout, f"timeout_seconds {error}")
            else:
                yield Value("options", {**options, "time_limit": limit}, timeout)

    def _attempts(self, job: Mapping[str, Any]) -> Iterator[Value]:
        """How often a job is attempted: one that fails is what is tried again, not a decision."""
        again, retries = self._given.get("retry_on_failure"), self._given.get("max_retries")
        number, is_wanted = None, True
        try:
            if retries is not None:
                number = Whole(0, _MOST_ATTEMPTS - 1).read(retries.plain())
        except ValueError as error:
            self._note(retries or self._key, f"max_retries {error}")
        try:
            if again is not None:
                is_wanted = Switch().read(again.plain())
        except ValueError as error:
            self._note(again or self._key, f"retry_on_failure {error}")
        if not is_wanted:
            number, retries = 0, again
        if number is None or retries is None:
            return
        own = self._given.get("job_policy")
        if own is not None and isinstance(own.value, dict) and "max_attempts" in own.value:
            key = "max_retries" if is_wanted else "retry_on_failure"
            said = f"it has both {key} and job_policy.max_attempts; keep one"
            self._note(retries, said, "job_policy")
            return
        yield Value("job_policy", {**job, "max_attempts": number + 1}, retries)

    def _note(self, node: Node, message: str, field: str = "") -> None:
        self._notes.at(node, message, self._name, field)
