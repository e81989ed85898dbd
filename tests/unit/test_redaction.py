"""What is masked of a task's arguments, results and errors."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
from celery import Celery

from pgbeat.access.actors import Actor
from pgbeat.access.redaction import MASK, Redactor
from pgbeat.config.readers import redact

USER, ADMIN = Actor("user:alice"), Actor("user:root", is_admin=True)
Redactors = Callable[..., Redactor]


@pytest.fixture
def redactor() -> Redactors:
    app = Celery("tests", set_as_current=False)

    @app.task(name="pay", bind=True, shared=False)
    def pay(self: Any, amount: int, card: str, *more: Any, note: str = "") -> None: ...

    @app.task(name="own", shared=False, pgbeat_redact=["pin"])
    def own(pin: str) -> None: ...

    def make(actor: Actor = USER, rules: Mapping[str, Any] | None = None) -> Redactor:
        given = {"pay": ["card", "*token*"]} if rules is None else rules
        return Redactor(actor, redact(given), app.tasks)

    return make


def test_named_arguments_are_masked_at_any_depth(redactor: Redactors) -> None:
    given = {"amount": 1, "CARD": "4111", "by": [{"card": {"n": 1}, "x": 2}], "api_token": "t"}
    assert redactor().kwargs("pay", given) == {
        "amount": 1,
        "CARD": MASK,
        "by": [{"card": MASK, "x": 2}],
        "api_token": MASK,
    }
    assert given["CARD"] == "4111"


def test_positional_arguments_are_masked_by_the_tasks_signature(redactor: Redactors) -> None:
    assert redactor().args("pay", [1, "4111"]) == [1, MASK]
    # Nothing says what these are.
    assert redactor().args("pay", [1, "4111", "5"]) == [1, MASK, MASK]
    assert redactor(rules={"Gone": ["card"]}).args("gone", [1, 2]) == [MASK, MASK]
    assert redactor(rules={"gone": ["card"]}).args("gone", []) == []


def test_a_task_that_no_rule_names_is_shown(redactor: Redactors) -> None:
    assert redactor().args("other", [1, {"card": 2}]) == [1, {"card": 2}]
    assert redactor().kwargs("other", {"card": 2}) == {"card": 2}


def test_a_rule_of_all_masks_everything_but_the_class_of_an_error(redactor: Redactors) -> None:
    all_of = redactor(rules={"pa*": "*"})
    assert all_of.args("pay", [1]) == [MASK]
    assert all_of.kwargs("pay", {"amount": 1}) == {"amount": MASK}
    assert all_of.value("pay", {"a": 1}) == MASK
    assert all_of.text("pay", "Traceback …") == MASK
    assert all_of.error("pay", "shop.Declined: card 4111") == f"shop.Declined: {MASK}"
    assert all_of.error("pay", "card 4111: declined") == MASK


def test_names_mask_keys_of_results_but_no_errors(redactor: Redactors) -> None:
    assert redactor().value("pay", {"card": 1, "ok": True}) == {"card": MASK, "ok": True}
    assert redactor().error("pay", "Declined: no") == "Declined: no"


def test_every_rule_that_fits_applies(redactor: Redactors) -> None:
    both = redactor(rules={"pay": ["note"], "p*": ["card"]})
    assert both.kwargs("pay", {"note": 1, "card": 2, "amount": 3}) == {
        "note": MASK,
        "card": MASK,
        "amount": 3,
    }
    also = redactor(rules={"own": ["x"]})
    assert also.kwargs("own", {"pin": 1, "x": 2, "y": 3}) == {"pin": MASK, "x": MASK, "y": 3}


def test_an_unknown_task_is_masked_if_there_is_any_rule(redactor: Redactors) -> None:
    assert redactor(rules={}).kwargs(None, {"a": 1}) == {"a": MASK}  # `own` has a rule
    assert Redactor(USER, {}, {}).kwargs(None, {"a": 1}) == {"a": 1}


def test_callbacks_are_masked_by_their_own_rules(redactor: Redactors) -> None:
    link = {"task": "pay", "args": [1, "4111"], "kwargs": {"card": 1, "note": "n"}, "options": {}}
    shown = redactor().options("other", {"link": [link], "queue": "q"})
    assert shown["queue"] == "q"
    assert shown["link"][0]["args"] == [1, MASK]
    assert shown["link"][0]["kwargs"] == {"card": MASK, "note": "n"}
    nested = redactor().kwargs("celery.chain", {"tasks": [link]})
    assert nested["tasks"][0]["kwargs"]["card"] == MASK
    assert redactor().options("pay", {"kwargsrepr": "{'card': 1}"}) == {"kwargsrepr": MASK}


def test_administrators_see_everything(redactor: Redactors) -> None:
    seen = redactor(ADMIN)
    assert seen.kwargs("pay", {"card": 1}) == {"card": 1}
    assert seen.args("pay", [1, 2]) == [1, 2]
    assert seen.url(None, "https://a.b/secret") == "https://a.b/secret"


class _Record(NamedTuple):
    kind: str
    before: Any
    after: Any
    subject: str = "s"


def test_records_of_the_audit_are_masked(redactor: Redactors) -> None:
    record = _Record("schedule", {"kwargs": {"card": 1}}, {"kwargs": {"card": 2}, "queue": "q"})
    shown = redactor().audited(record)  # the task is the same in both, so it isn't there
    assert shown.before == {"kwargs": {"card": MASK}}
    assert shown.after == {"kwargs": {"card": MASK}, "queue": "q"}
    changed = _Record(
        "schedule",
        {"task": "pay", "kwargs": {"card": 1}},
        {"task": "other", "kwargs": {"card": 1, "x": 2}},
    )
    shown = redactor().audited(changed)
    assert shown.before == {"task": "pay", "kwargs": {"card": MASK}}
    assert shown.after == {"task": "other", "kwargs": {"card": MASK, "x": 2}}
    hook = _Record("webhook", None, {"url": "https://hooks.test/T0/secret", "task": None})
    assert redactor().audited(hook).after["url"] == f"https://hooks.test/{MASK}"
    secret = _Record("webhook", {"secret_hint": "whsec_…abcd"}, {"secret_hint": "whsec_…efgh"})
    assert redactor(rules={}).audited(secret).after == {"secret_hint": MASK}
    event = _Record("event", None, None, "paid/4711")  # its key may be made of an argument
    assert redactor().audited(event).subject == MASK
    assert shown.subject == "s"


@pytest.mark.parametrize("value", ["{", 1, ["a"], {"a": 1}, {"a": [1]}, {1: "*"}, {"a": [" "]}])
def test_settings_that_are_wrong_are_refused(value: Any) -> None:
    with pytest.raises(ValueError):
        redact(value)


def test_settings_from_the_environment_are_json() -> None:
    assert redact('{"a.*": ["card"], "b": "*"}') == {"a.*": ("card",), "b": ("*",)}
