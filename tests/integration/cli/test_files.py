"""`pgbeat sync` and `export`: show plans, apply them, refuse invalid files."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from celery import Celery
from click.testing import Result

from pgbeat.schedules.files.schema import schema
from tests.integration.cli.conftest import Write
from tests.support.command_line import Sql, refused, run, run_with
from tests.support.processes import until

Start = Callable[[str], "subprocess.Popen[str]"]

PGBEAT = [sys.executable, "-c", "from pgbeat.cli import main; main()"]
NOT_CHECKED = "Note: tasks and launchers are not checked; with -A APP they would be.\n"
TEXT = """\
schedules:
  nightly:
    task: tests.add
    cron: 0 2 * * *
  often:
    task: tests.note
    every: 15 minutes
    owner: ops
"""


def sync(database: str, *arguments: str, exit_code: int = 0, **options: Any) -> Result:
    result = run(database, "sync", *arguments, **options)
    assert result.exit_code == exit_code, result.output
    return result


def mistakes(refused: Result) -> list[str]:
    """Where the mistakes in `schedules.yaml` are, each `line:column: name of the schedule`."""
    _, *lines = refused.stderr.splitlines()
    return [":".join(line.removeprefix("  schedules.yaml:").split(":")[:3]) for line in lines]


def read(database: str, *arguments: str, exit_code: int = 0) -> Any:
    return json.loads(sync(database, *arguments, "--json", exit_code=exit_code).stdout)


def owners(sql: Sql) -> dict[str, str | None]:
    return dict(sql("SELECT name, owner FROM pgbeat.schedules"))


def test_a_plan_is_shown_and_not_applied(database: str, write: Write, sql: Sql) -> None:
    planned = sync(database, write(TEXT), "--plan", exit_code=3)
    assert planned.stdout == (
        "Plan for schedules.yaml (namespace 'default'):\n"
        "  + nightly: tests.add, cron 0 2 * * *\n"
        "  + often: tests.note, every 15 minutes\n"
        "2 to add; 0 unchanged.\n"
    )
    assert planned.stderr == NOT_CHECKED
    assert sql("SELECT * FROM pgbeat.schedules") == []


def test_a_plan_names_the_template_of_a_schedule_that_has_its_task_from_it(
    database: str, write: Write
) -> None:
    run(database, "templates", "set", "daily", "--task", "tests.add")
    path = write("schedules:\n  tmpl: {cron: '0 2 * * *', job_policy: {template: daily}}\n")
    assert sync(database, path, "--plan", exit_code=3).stdout.splitlines()[1] == (
        "  + tmpl: template daily, cron 0 2 * * *"
    )


def test_what_is_shown_is_done(database: str, write: Write, sql: Sql) -> None:
    done = sync(database, write(TEXT))
    assert done.stdout.splitlines()[1:] == [
        "  + nightly: tests.add, cron 0 2 * * *",
        "  + often: tests.note, every 15 minutes",
        "2 added; 0 unchanged.",
    ]
    assert sql("SELECT name, task, source, every FROM pgbeat.schedules ORDER BY name") == [
        ("nightly", "tests.add", "file", None),
        ("often", "tests.note", "file", timedelta(minutes=15)),
    ]
    again = sync(database, "schedules.yaml")
    assert again.stdout == "Nothing to do: 2 schedules are as the file says.\n"
    assert sync(database, "schedules.yaml", "--plan").stdout == again.stdout


def test_changes_drift_and_what_is_not_in_the_file(database: str, write: Write, sql: Sql) -> None:
    sync(database, write(TEXT))
    sql("UPDATE pgbeat.schedules SET owner = 'me', queue = 'slow' WHERE name = 'often'")
    run(database, "add", "theirs", "--task", "t", "--every", "5")
    path = write(
        "schedules:\n"
        + TEXT[TEXT.index("  often") :].replace("ops", "you")
        + "    kwargs: {area: DK1}\n  theirs: {task: t, every: 6}\n"
    )
    changed = sync(database, path)
    assert changed.stdout == (
        "Plan for schedules.yaml (namespace 'default'):\n"
        "  ~ often\n"
        '        kwargs: {} → {"area": "DK1"}\n'
        "        queue: slow → none (drift: the last sync wrote none)\n"
        "        owner: me → you (drift: the last sync wrote ops)\n"
        "1 changed, 1 of which had drifted; 0 unchanged.\n"
    )
    assert changed.stderr == (
        "Note: not in the file, and kept: nightly; --prune removes them.\n"
        "Note: made elsewhere, and left alone: theirs (cli); --adopt takes them over.\n"
        + NOT_CHECKED
    )
    assert owners(sql) == {"nightly": None, "often": "you", "theirs": None}
    last = sync(database, path, "--prune", "--adopt")
    assert last.stdout.splitlines()[1:] == [
        "  ~ theirs (made by cli, the file's from now on)",
        "        every: 5 seconds → 6 seconds",
        "  - nightly",
        "1 removed, 1 adopted; 1 unchanged.",
    ]
    assert last.stderr == NOT_CHECKED
    assert owners(sql) == {"often": "you", "theirs": None}
    assert sync(database, path, "--prune", "--adopt").stdout.startswith("Nothing to do: 2 ")


def test_the_plan_in_json(database: str, write: Write, sql: Sql) -> None:
    path = write(TEXT)
    planned = read(database, path, "--plan", exit_code=3)
    assert planned["add"] == {
        "nightly": {"task": "tests.add", "cron": "0 2 * * *"},
        "often": {"task": "tests.note", "every": "15 minutes", "owner": "ops"},
    }
    assert (planned["applied"], planned["changes"], planned["unchanged"]) == (False, True, 0)
    assert read(database, path) == planned | {"applied": True}
    sql("UPDATE pgbeat.schedules SET owner = 'me' WHERE name = 'often'")
    run(database, "add", "theirs", "--task", "t", "--every", "5")
    path = write(TEXT.replace("nightly", "theirs").replace("minutes", "seconds"))
    found = read(database, path, "--adopt")
    assert found["change"]["often"] == {
        "every": {"old": "15 minutes", "new": "15 seconds"},
        "owner": {"old": "me", "new": "ops", "drift": True, "last_sync": "ops"},
    }
    adopted = found["adopt"]["theirs"]
    assert (adopted["source"], adopted["change"]["task"]["new"]) == ("cli", "tests.add")
    assert (found["kept"], found["remove"]) == (["nightly"], [])


def test_from_standard_input(database: str, sql: Sql) -> None:
    sync(database, "-", input=TEXT)
    exported = run(database, "export", "--format", "json").stdout
    assert sync(database, "-", input=exported).stdout.startswith("Nothing to do: 2 ")
    wrong = sync(database, "-", input="schedules: 5", exit_code=2)
    assert "<stdin>:1:12: schedules is 5; " in wrong.stderr


def test_json_by_its_name(database: str, write: Write) -> None:
    path = write('{"schedules": {"s": {"task": "t", "every": "x"}}}', "schedules.JSON")
    assert "schedules.JSON:1:44: s: " in sync(database, path, exit_code=2).stderr


# -- refused ---------------------------------------------------------------------------------------


def test_no_such_file(database: str) -> None:
    assert "which file?" in sync(database, exit_code=2).stderr
    for named in ("nowhere.yaml", "."):
        assert f"'{named}'" in sync(database, named, exit_code=2).stderr


def test_what_is_no_text(database: str, tmp_path: Path) -> None:
    path = tmp_path / "schedules.yaml"
    path.write_bytes(b"schedules: {}\n# \xff\n")
    assert f"{path}:2: it is not UTF-8" in sync(database, str(path), exit_code=2).stderr


def test_all_mistakes_are_listed_at_once_whatever_finds_them(app: Celery, write: Write) -> None:
    path = write("""\
schedules:
  a: {task: tests.ad, cron: x, calendar: b, job_policy: {lane: gpu}}
  b: {task: tests.add, every: 5, condition_sql: SELEC 1, options: {prio: 1, countdown: x}}
  c: {task: tests.ad, after: e, queue: celery.pidbox}
  d: {task: tests.add, after: nowhere, grace: soon}
  e: 5
""")
    refused = run_with(app, "sync", path)
    assert sorted(mistakes(refused)) == [
        "2:13: a",
        "2:29: a",
        "2:42: a",
        "2:57: a",
        "3:49: b",
        "3:67: b",
        "3:67: b",
        "4:13: c",
        "4:40: c",
        "5:31: d",
        "5:47: d",
        "6:6: e",
    ]
    gone = run("postgresql://127.0.0.1:1/x", "sync", path)
    assert len(mistakes(gone)) == 5  # what needs neither the app nor the database


def test_conditions_that_could_never_run(database: str, write: Write, sql: Sql) -> None:
    for condition, named in (
        ("SELECT 1; SELECT 2", "multiple commands"),
        ("SELECT $1::int", "parameters"),
        ("SET a.b = 1", "no rows"),
        ("DELETE FROM pgbeat.jobs", "no rows"),
    ):
        path = write(f"{TEXT}    condition_sql: {condition}\n")
        refused = sync(database, path, exit_code=2)
        assert mistakes(refused) == ["9:20: often"]
        assert named in refused.stderr
    assert sql("SELECT * FROM pgbeat.schedules") == []
    sync(database, write(f"{TEXT}    condition_sql: SELECT count(*) > 0 FROM not_there_yet\n"))


def test_functions_that_the_settings_allow(app: Celery, write: Write, sql: Sql) -> None:
    path = write("""\
schedulers:
- {name: s, trigger: interval, interval_minutes: 15, function: shop.add, args: {x: 3}}
""")
    refused = run_with(app, "sync", path)
    assert refused.exit_code == 2
    assert "pgbeat_allowed_functions" in refused.stderr
    app.conf.pgbeat_allowed_functions = {"shop.add": "tests.add"}
    assert run_with(app, "sync", path).exit_code == 0
    assert sql("SELECT task, kwargs, every FROM pgbeat.schedules") == [
        ("tests.add", {"x": 3}, timedelta(minutes=15))
    ]


# -- namespaces ------------------------------------------------------------------------------------


def test_the_file_s_namespace_wins_over_the_app_s(app: Celery, write: Write, sql: Sql) -> None:
    app.conf.pgbeat_namespace = "shop"
    assert run_with(app, "sync", write(TEXT)).stderr == ""
    other = run_with(app, "sync", write("namespace: bank\n" + TEXT))
    assert other.stderr == (
        "Note: the app's schedules are in namespace 'shop', the file's are not.\n"
    )
    assert sql("SELECT namespace, count(*) FROM pgbeat.schedules GROUP BY 1 ORDER BY 1") == [
        ("bank", 2),
        ("shop", 2),
    ]
    exported = run_with(app, "export")
    assert exported.stdout.startswith("namespace: shop\n\nschedules:\n  nightly:\n")


# -- at the same time ------------------------------------------------------------------------------


@pytest.fixture
def start(database: str) -> Iterator[Start]:
    """Starts `pgbeat sync FILE` in another process."""
    with ExitStack() as running:

        def start(path: str) -> "subprocess.Popen[str]":
            process = subprocess.Popen(
                [*PGBEAT, "--url", database, "sync", path],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            running.enter_context(process)
            running.callback(process.kill)
            return process

        yield start


def waiting(sql: Sql, count: int = 1) -> bool:
    rows = sql(
        "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND "
        "application_name = 'pgbeat cli' AND datname = current_database()"
    )
    return len(rows) == count


@pytest.mark.parametrize("owner", ["me", "you"])
def test_rows_that_are_changed_meanwhile_are_planned_anew(
    database: str, write: Write, sql: Sql, start: Start, owner: str
) -> None:
    sync(database, write(TEXT))
    path = write(TEXT.replace("ops", "you"))
    with psycopg.connect(database) as other:
        other.execute("UPDATE pgbeat.schedules SET owner = %s WHERE name = 'often'", [owner])
        process = start(path)
        until(lambda: waiting(sql))
    said, noted = process.communicate(timeout=60)
    assert process.returncode == 0, noted
    assert "owner: ops → you\n" in said
    assert "Note: schedules were changed meanwhile; here is the new plan.\n" in noted
    if owner == "me":
        assert "owner: me → you (drift: the last sync wrote ops)\n1 changed" in said
    else:
        assert said.endswith("Nothing to do: 2 schedules are as the file says.\n")
    assert owners(sql)["often"] == "you"


def test_two_syncs_come_one_after_the_other(
    database: str, write: Write, sql: Sql, start: Start
) -> None:
    path = write(TEXT)
    with psycopg.connect(database) as other:
        other.execute("SELECT pg_advisory_xact_lock(hashtextextended('pgbeat.files default', 0))")
        processes = [start(path) for _ in range(2)]
        until(lambda: waiting(sql, 2))
    said = [process.communicate(timeout=60)[0].splitlines()[-1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(said) == [
        "2 added; 0 unchanged.",
        "Nothing to do: 2 schedules are as the file says.",
    ]


def test_a_name_that_is_taken_meanwhile(
    database: str, write: Write, sql: Sql, start: Start
) -> None:
    path = write(TEXT)
    with psycopg.connect(database) as other:
        other.execute(
            "INSERT INTO pgbeat.schedules (name, task, every) VALUES ('often', 'theirs', '5 s')"
        )
        process = start(path)
        until(lambda: waiting(sql))
    said, noted = process.communicate(timeout=60)
    assert said.endswith("  + nightly: tests.add, cron 0 2 * * *\n1 added; 0 unchanged.\n")
    assert "Note: made elsewhere, and left alone: often (sql); " in noted
    assert sql("SELECT name, task FROM pgbeat.schedules ORDER BY 1") == [
        ("nightly", "tests.add"),
        ("often", "theirs"),
    ]


def test_what_beat_writes_meanwhile_is_no_change(
    database: str, write: Write, sql: Sql, start: Start
) -> None:
    sync(database, write(TEXT))
    path = write(TEXT.replace("ops", "you"))
    with psycopg.connect(database) as other:
        other.execute(
            "UPDATE pgbeat.schedules SET last_run = '2025-01-01Z', next_run = '2030-01-01Z'"
        )
        process = start(path)
        until(lambda: waiting(sql))
    said, noted = process.communicate(timeout=60)
    assert said.endswith("1 changed; 1 unchanged.\n")
    assert "meanwhile" not in noted
    assert owners(sql)["often"] == "you"
    assert sql(
        "SELECT count(*) FROM pgbeat.schedules WHERE last_run = '2025-01-01Z' "
        "AND next_run = '2030-01-01Z'"
    ) == [(2,)]


# -- schema and export -----------------------------------------------------------------------------


def test_the_schema_needs_no_database() -> None:
    printed = run(None, "sync", "--schema")
    assert (printed.exit_code, printed.stdout) == (0, schema())


def test_export_names_and_code(database: str, write: Write, sql: Sql) -> None:
    sync(database, write(TEXT))
    sql(
        "INSERT INTO pgbeat.schedules (name, source, task, args, every) VALUES "
        "('coded', 'code', 't', '[]', '5 s'), ('lazy', 'code', 't', NULL, '5 s')"
    )
    everything = run(database, "export")
    assert everything.stdout == TEXT.replace("  often", "\n  often")
    assert everything.stderr == "Note: made by the app's code, and left out: coded, lazy.\n"
    some = run(database, "export", "coded", "often", "--format", "json")
    assert json.loads(some.stdout)["schedules"] == {
        "coded": {"task": "t", "every": "5 seconds"},
        "often": {"task": "tests.note", "every": "15 minutes", "owner": "ops"},
    }
    assert run(database, "export", "oftn").stderr == (
        "Error: there is no schedule 'oftn'; did you mean 'often'? `pgbeat list` shows all "
        "schedules\n"
    )
    lazy = run(database, "export", "lazy")
    assert lazy.exit_code == 2
    assert lazy.stderr == (
        "Error: schedule 'lazy' can't be in a file: its timetable or its arguments are in the "
        "app's code\n"
    )


def test_calendars_go_with_those_that_name_them(database: str, write: Write) -> None:
    sync(
        database,
        write("""\
calendars: {office: {weekdays: [sat, sun]}, other: {dates: [12-25]}}
schedules: {s: {task: t, every: 5, calendar: office}, u: {task: t, every: 5}}
"""),
    )
    assert list(json.loads(run(database, "export", "--format", "json").stdout)["calendars"]) == [
        "office",
        "other",
    ]
    assert run(database, "export", "s").stdout == (
        "calendars:\n  office:\n    weekdays: [sat, sun]\n\n"
        "schedules:\n  s:\n    task: t\n    every: 5 seconds\n    calendar: office\n"
    )
    assert "calendars" not in run(database, "export", "u").stdout


def test_nothing_to_export(database: str) -> None:
    assert run(database, "export").stdout == "schedules: {}\n"


def test_without_the_library_for_yaml(
    database: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(TEXT)
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.delitem(sys.modules, "pgbeat.schedules.files.yaml_documents", raising=False)
    from pgbeat.schedules import files

    monkeypatch.delattr(files, "yaml_documents", raising=False)
    assert "YAML needs PyYAML" in sync(database, path, exit_code=2).stderr
    assert "--format json" in refused(run(database, "export"))
    sync(database, write('{"schedules": {}}', "schedules.json"))
    assert run(database, "export", "--format", "json").stdout == '{\n  "schedules": {}\n}\n'
