"""`pgbeat queues` and `dead`: show and change the broker's queues and dead letters."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from celery import Celery
from kombu import Exchange, Queue

from pgbeat.config import postgres_url
from pgbeat.database.migrations import migrate
from tests.support.command_line import Sql, cells, read, refused, run, run_on_terminal, run_with
from tests.support.databases import sqlalchemy_url
from tests.support.rows import make_dead_letter

Publish = Callable[..., str]


@pytest.fixture
def publish(app: Celery) -> Publish:
    """Returns what publishes `tests.add` to a queue, and returns its id."""
    return lambda queue, **options: str(app.send_task("tests.add", queue=queue, **options).id)


@pytest.fixture
def channel(app: Celery) -> Iterator[Any]:
    """Yields a channel of kombu, which keeps its claims until the test ends."""
    with app.connection_for_read() as connection:
        yield connection.channel()


@pytest.fixture
def die(publish: Publish, channel: Any) -> Publish:
    """Returns what publishes a message and rejects it, and returns the task's id."""

    def give_up(queue: str) -> str:
        task_id = publish(queue)
        channel.basic_reject(channel.basic_get(queue).delivery_tag, requeue=False)
        return task_id

    return give_up


def waiting(sql: Sql) -> dict[str, int]:
    return dict(
        sql(
            "SELECT q.name, count(*) FROM kombu_message m JOIN kombu_queue q ON q.id = m.queue_id "
            "WHERE m.visible GROUP BY 1"
        )
    )


def dead(sql: Sql, of: str = "%") -> list[int]:
    """Returns the ids of the dead letters, the oldest first."""
    statement = "SELECT id FROM kombu_message_dead WHERE queue LIKE %s ORDER BY id"
    return [id for (id,) in sql(statement, of)]


def test_the_numbers_of_queues(
    database: str, publish: Publish, die: Publish, channel: Any, sql: Sql
) -> None:
    die("mail")
    for _ in range(2):
        publish("mail")
    channel.basic_get("mail")
    for _ in range(3):
        publish("mail", countdown=3600)
    for _ in range(4):
        publish("reports")
    sql("UPDATE kombu_message SET enqueued_at = now() - interval '17 minutes' WHERE visible")
    sql("UPDATE kombu_queue SET paused_at = now() - interval '2 hours' WHERE name = 'reports'")
    shown = run(database, "queues").stdout.splitlines()
    assert [cells(text) for text in shown] == [
        ["queue", "waiting", "delayed", "claimed", "dead", "consumers", "oldest", "paused"],
        ["celery", "0", "0", "0", "0", "0"],
        ["mail", "1", "3", "1", "1", "0", "17 min"],
        ["reports", "4", "0", "0", "0", "0", "17 min", "for 2 h"],
    ]
    # Numbers are flush right, beneath the ends of their names.
    assert shown[2].index("1") == shown[0].index("waiting") + len("waiting") - 1


def test_claimed_messages_are_left_to_their_consumers(
    database: str, publish: Publish, channel: Any
) -> None:
    publish("mail")
    channel.basic_get("mail")
    assert (
        "finish the 1 message that they claimed" in run(database, "queues", "pause", "mail").stderr
    )
    purged = run(database, "queues", "purge", "mail", "--yes")
    assert "1 message claimed by consumers can't be deleted" in purged.stderr


def test_internal_queues_are_hidden(database: str, channel: Any, sql: Sql) -> None:
    sql("DELETE FROM kombu_queue")
    Queue("w@h.celery.pidbox", Exchange("pidbox", "fanout"), auto_delete=True)(channel).declare()
    channel.queue_declare("answers", exclusive=True, auto_delete=False)
    assert run(database, "queues").stdout == (
        "There are only internal queues, which --all shows.\n"
    )
    assert read(database, "queues") == []
    Queue("mail")(channel).declare()
    assert [row["name"] for row in read(database, "queues")] == ["mail"]
    rows = {row["name"]: row for row in read(database, "queues", "--all")}
    assert set(rows) == {"answers", "mail", "w@h.celery.pidbox"}
    assert rows["w@h.celery.pidbox"]["auto_delete"]
    assert rows["answers"]["owner"] is not None


def test_no_queues(database: str, sql: Sql) -> None:
    sql("DELETE FROM kombu_queue")
    assert run(database, "queues").stdout == (
        "There are no queues yet; `celery -A APP worker` makes those that it consumes from.\n"
    )
    assert read(database, "queues") == []


def test_where_the_brokers_tables_are_missing(empty_database: str) -> None:
    migrate.upgrade(postgres_url(empty_database))
    for command in (
        "queues",
        "queues --json",
        "queues pause q",
        "queues resume q",
        "queues purge q",
        "dead list",
        "dead requeue 1",
        "dead drop --all",
    ):
        assert "`pgbeat -A APP migrate`" in refused(run(empty_database, *command.split()), 1)


def test_an_app_that_names_the_tables_otherwise(database: str, app: Celery) -> None:
    for scheme in ("pgbeat", "sqla"):
        app.conf.broker_url = f"{scheme}+{sqlalchemy_url(database)}"
        app.conf.broker_transport_options = {"queue_tablename": "q"}
        assert "`pgbeat migrate --queue-table NAME`" in refused(run_with(app, "queues"), 2)
        app.conf.broker_transport_options = {"queue_tablename": "kombu_queue"}
        assert run_with(app, "queues").exit_code == 0


def test_an_app_whose_broker_is_elsewhere(database: str, app: Celery) -> None:
    app.conf.broker_url = "redis://u:secret@nowhere.invalid"
    app.conf.pgbeat_url = database
    assert "the app's broker is not database 'pgbeat_" in refused(run_with(app, "queues"), 1)


def test_the_stock_transport_tells_less(app: Celery, database: str) -> None:
    assert run_with(app, "queues").stderr == ""
    assert run_with(app, "queues", "pause", "celery").stderr == ""
    app.conf.broker_url = f"sqla+{sqlalchemy_url(database)}"
    assert run_with(app, "queues").stderr == (
        "Note: consumers and claims on the stock transport (sqla+) are not seen.\n"
    )
    assert run_with(app, "queues", "pause", "celery").stderr == (
        "Note: workers on the stock transport (sqla+) don't pause.\n"
    )


def test_a_queue_that_somebody_holds(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgbeat.cli.terminal.target._LIMITS", {"lock_timeout": "50ms"})
    with psycopg.connect(database) as other:
        other.execute("UPDATE kombu_queue SET used_at = now()")
        said = refused(run(database, "queues", "pause", "celery"), 1)
    assert said == "another session is changing that; try again"


def test_options_of_the_list_are_not_a_commands(database: str) -> None:
    assert "--all and --json" in refused(run(database, "queues", "--json", "pause", "celery"))


def test_dead_letters(database: str, die: Publish, sql: Sql) -> None:
    one, two = die("mail"), die("reports")
    sql("UPDATE kombu_message_dead SET died_at = now() - interval '2 days' WHERE queue = 'mail'")
    newer, older = dead(sql, "reports"), dead(sql, "mail")
    header, *lines = run(database, "dead", "list").stdout.splitlines()
    assert cells(header) == ["id", "queue", "task", "task id", "reason", "deliveries", "died"]
    found = [cells(text) for text in lines]
    assert found == [
        [str(newer[0]), "reports", "tests.add", two, "rejected", "1", found[0][-1]],
        [str(older[0]), "mail", "tests.add", one, "rejected", "1", "2 d ago"],
    ]
    assert re.fullmatch(r"[\d.]+ s ago", found[0][-1])


def test_some_dead_letters(database: str, die: Publish, sql: Sql) -> None:
    for queue in ("mail", "mail", "mail", "reports"):
        die(queue)
    assert [row["queue"] for row in read(database, "dead", "list", "--queue", "reports")] == [
        "reports"
    ]
    first = run(database, "dead", "list", "--limit", "2", "--queue", "mail")
    assert [int(cells(text)[0]) for text in first.stdout.splitlines()[1:]] == dead(sql)[2:0:-1]
    assert first.stderr == "Note: there are more than these 2; --limit shows them.\n"
    all_of_them = run(database, "dead", "list", "--limit", "3", "--queue", "mail")
    assert (len(all_of_them.stdout.splitlines()), all_of_them.stderr) == (4, "")


def test_no_dead_letters(database: str, die: Publish, sql: Sql) -> None:
    assert run(database, "dead", "list").stdout == "There are no dead letters.\n"
    assert run(database, "dead", "list", "--queue", "celery").stdout == (
        "There are no dead letters of queue 'celery'.\n"
    )
    assert read(database, "dead", "list") == []
    die("gone")
    sql("DELETE FROM kombu_queue WHERE name = 'gone'")
    assert len(read(database, "dead", "list", "--queue", "gone")) == 1


@pytest.mark.parametrize(
    "payload", ["", "[]", "{}", '{"headers": null}', '{"headers": {"task": 5, "id": {}}}']
)
def test_a_dead_letter_that_is_none_of_celerys(database: str, sql: Sql, payload: str) -> None:
    letter = make_dead_letter(sql, "mail", payload=payload, reason="a\n\x1b[31mb")
    assert [row["task"] for row in read(database, "dead", "list")] == [None]
    shown = run(database, "dead", "list").stdout.splitlines()[1]
    found = cells(shown)[:5]
    assert found == [f"{letter}", "mail", "unknown", "a \N{REPLACEMENT CHARACTER}[31mb", "3"]


def test_in_a_narrow_terminal_lines_are_stacked(database: str, die: Publish, sql: Sql) -> None:
    task_id = die("mail")
    reason = "delivered 20 times, the last time to a consumer that died"
    sql("UPDATE kombu_message_dead SET reason = %s", reason)
    shown = run_on_terminal(database, 80, "dead", "list")
    assert cells(shown[0]) == ["id", "queue", "task, its id, and the reason", "deliveries", "died"]
    assert cells(shown[1])[:4] == [str(dead(sql)[0]), "mail", "tests.add", "1"]
    assert shown[2].strip() == task_id
    assert " ".join(text.strip() for text in shown[3:]) == reason
    assert len(run_on_terminal(database, 170, "dead", "list")) == 2


def test_in_a_narrow_terminal_only_a_queues_name_leaves_its_row(database: str, sql: Sql) -> None:
    name = "worker@some.host.example.com.celery.pidbox"
    sql("INSERT INTO kombu_queue (name) VALUES (%s)", name)
    header, *lines = run_on_terminal(database, 80, "queues")
    assert cells(header)[-2:] == ["oldest", "paused"]
    assert lines[lines.index(name) + 1].split() == ["0"] * 5, "its figures are below"


def test_requeue_by_queue_and_all(database: str, die: Publish, sql: Sql) -> None:
    for queue in ("mail", "mail", "reports", "reports", "reports"):
        die(queue)
    tried = run(database, "dead", "requeue", "--all", "--dry-run")
    assert tried.stdout == "Would put back 5 dead letters (3 of 'reports', 2 of 'mail').\n"
    run(database, "dead", "requeue", "--queue", "mail")
    assert (len(dead(sql)), waiting(sql)) == (3, {"mail": 2})
    run(database, "dead", "requeue", "--all")
    assert (dead(sql), waiting(sql)) == ([], {"mail": 2, "reports": 3})
    again = run(database, "dead", "requeue", "--queue", "mail")
    assert (again.exit_code, again.stdout) == (0, "There are no dead letters of queue 'mail'.\n")


def test_requeue_of_what_is_of_no_queue(database: str, die: Publish, sql: Sql) -> None:
    die("mail")
    die("mail")
    one, two = dead(sql)
    sql("UPDATE kombu_message_dead SET queue = '' WHERE id = %s", one)
    note = "Note: 1 dead letter can't be put back: the queue no longer exists.\n"
    put_back = run(database, "dead", "requeue", str(one), str(two))
    assert (put_back.stdout, put_back.stderr) == ("Put back 1 dead letter (of 'mail').\n", note)
    assert put_back.exit_code == 1
    assert (dead(sql), waiting(sql)) == ([one], {"mail": 1})
    again = run(database, "dead", "requeue", "--all")
    assert (again.stdout, again.stderr, again.exit_code) == ("", note, 1)
    assert sql("SELECT name FROM kombu_queue WHERE name = ''") == []


@pytest.mark.parametrize("command", [["requeue"], ["drop", "--yes"]])
def test_ids_that_are_not_there(database: str, die: Publish, sql: Sql, command: list[str]) -> None:
    die("mail")
    [one] = dead(sql)
    assert " 99;" in refused(run(database, "dead", *command, str(one), "99"), 1)
    assert " 98, 99;" in refused(run(database, "dead", *command, "98", str(one), "99"), 1)
    many = [str(id) for id in range(90, 110)]
    assert " 90, 91, 92, 93, 94, 95, 96, 97, 98, 99, …;" in refused(
        run(database, "dead", *command, *many), 1
    )
    assert f" {one} of queue 'celery';" in refused(
        run(database, "dead", *command, str(one), "--queue", "celery"), 1
    )
    assert (dead(sql), waiting(sql)) == ([one], {})


@pytest.mark.parametrize("command", ["requeue", "drop"])
def test_which_dead_letters(database: str, die: Publish, sql: Sql, command: str) -> None:
    die("mail")
    for arguments, named in ((), "which"), (("1", "--all"), "ids and all"), (("x",), "'x'"):
        assert named in refused(run(database, "dead", command, *arguments))
    assert "'[ID]...'" in refused(run(database, "dead", command, "0"))
    assert (len(dead(sql)), waiting(sql)) == (1, {})


def test_drop_what_is_old(database: str, die: Publish, sql: Sql) -> None:
    for queue in ("mail", "reports", "mail"):
        die(queue)
    one, two, three = dead(sql)
    sql("UPDATE kombu_message_dead SET died_at = now() - interval '8 days' WHERE id <> %s", three)
    old = ("--older-than", "7d")
    assert run(database, "dead", "drop", "--older-than", "9 days").stdout == (
        "There are no dead letters older than 9 d.\n"
    )
    said = refused(run(database, "dead", "drop", str(one), str(three), *old), 1)
    assert f" {three} older than 7 d;" in said
    run(database, "dead", "drop", "--queue", "mail", *old, "--yes")
    assert dead(sql) == [two, three]
    run(database, "dead", "drop", *old, "--yes")
    assert dead(sql) == [three]


def test_drop_deletes_what_was_asked_about(
    database: str, die: Publish, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    die("mail")

    def confirm(question: str, **options: Any) -> bool:
        assert question == "Drop 1 dead letter (of 'mail')?"
        die("mail")
        return True

    monkeypatch.setattr("click.confirm", confirm)
    assert run(database, "dead", "drop", "--all").stdout == "Dropped 1 dead letter.\n"
    assert len(dead(sql)) == 1
