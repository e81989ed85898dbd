"""The command line as a whole: finds app and database, prints errors, sets exit statuses."""

import os
import re
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg
import pytest
from celery import Celery
from click import Context, Group
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from pgbeat import __version__
from pgbeat.cli import COMMANDS, SCHEDULES, program
from pgbeat.database.migrations import migrate
from tests.support.command_line import Sql, commands, read, refused, run, run_with
from tests.support.databases import Role
from tests.support.processes import CELERY, PGBEAT, ROOT, Processes, shell, until
from tests.support.rows import make_schedule


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_says_itself(name: str) -> None:
    module, said = COMMANDS[name]
    command = getattr(import_module(f"pgbeat.cli.{module}"), f"{name}_command")
    assert command.name == name
    assert command.get_short_help_str(limit=200).startswith(said.removesuffix("."))


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help(name: str) -> None:
    result = CliRunner().invoke(program, [name, "--help"])
    assert result.exit_code == 0
    assert f"Usage: pgbeat {name}" in result.output.replace("program", "pgbeat")


def test_without_a_command_there_is_help() -> None:
    result = run(None)
    assert result.exit_code == 0
    assert all(name in result.stdout for name in COMMANDS)
    assert "short for `schedules pause NAME`" in result.stdout
    for path, group in commands(program):
        if isinstance(group, Group) and not group.invoke_without_command:
            shown = run(None, *path)
            assert (shown.exit_code, shown.stderr) == (0, ""), path
            names = group.list_commands(Context(group))
            assert all(f"  {name} " in shown.stdout for name in names), path


def test_the_program_introduces_itself() -> None:
    assert "A Celery beat scheduler on Postgres" in run(None, "--help").stdout
    assert "Look at pgbeat's schedules" in run_with(Celery(), "--help").stdout


def test_commands_on_schedules_have_short_forms() -> None:
    found = dict(commands(program))
    assert {path[1] for path in found if path[:1] == ("schedules",) and path[1:]} == set(SCHEDULES)
    for path, command in found.items():
        if path and path[0] in SCHEDULES:
            assert found["schedules", *path] is command


@pytest.mark.parametrize(
    ("words", "incomplete", "found"),
    [
        ([], "schedu", {"schedules"}),
        ([], "pau", {"pause"}),
        (["schedules"], "pau", {"pause"}),
        (["schedules"], "", set(SCHEDULES)),
        (["schedules"], "--he", {"--help"}),
        (["schedules", "pause"], "--rea", {"--reason"}),
        (["schedules", "cursor"], "s", {"set", "show"}),
        (["frobnicate"], "x", set()),
        (["lanes", "frobnicate"], "x", set()),
    ],
)
def test_completion(words: list[str], incomplete: str, found: set[str]) -> None:
    shell = ShellComplete(program, {}, "pgbeat", "_PGBEAT_COMPLETE")
    assert {item.value for item in shell.get_completions(words, incomplete)} == found


def test_version() -> None:
    assert run(None, "--version").stdout == f"pgbeat {__version__}\n"


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (["--help"], {}),
        (["health", "beat", "--within", "30"], {}),
        ([], {"_PGBEAT_COMPLETE": "bash_complete", "COMP_WORDS": "pgbeat ", "COMP_CWORD": "1"}),
    ],
)
def test_help_and_probes_import_nothing_heavy(words: list[str], env: dict[str, Any]) -> None:
    code = (
        f"import sys; from pgbeat.cli import main; sys.argv = ['pgbeat', *{words}]\n"
        "try: main()\n"
        "finally: print(sorted({'sqlalchemy', 'celery', 'rich', 'psycopg'} & set(sys.modules)))"
    )
    assert shell(sys.executable, "-c", code, **env).stdout.endswith("\n[]\n")


@pytest.mark.parametrize(
    "command",
    ["audit", "doctor", "errors", "forecast", "list", "load", "metrics", "queues", "workers"],
)
def test_commands_that_only_read_import_no_celery(database: str, command: str) -> None:
    """It takes as long to import as SQLAlchemy."""
    code = (
        f"import sys; from pgbeat.cli import main; sys.argv = ['pgbeat', '{command}', '--json']\n"
        "if sys.argv[1] == 'metrics': sys.argv.pop()\n"
        "try: main()\n"
        "finally: print(sorted({'alembic', 'celery', 'fastapi', 'kombu'} & set(sys.modules)))"
    )
    done = shell(sys.executable, "-c", code, PGBEAT_URL=database)
    assert done.stdout.endswith("\n[]\n"), done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "health beat --within nan",
        "demo --seconds nan",
        "prune --days nan",
        "top --interval nan",
        "forecast --hours nan",
        "add x --task t --every 1h --retry-factor nan",
    ],
)
def test_nan_is_no_number(database: str, words: str) -> None:
    assert "'nan' is not a number" in refused(run(database, *words.split()))


def test_neither_app_nor_database() -> None:
    sentence = refused(run(None, "list"))
    assert sentence.startswith("which database? Give the app with -A APP, or the database")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("lst",), "did you mean 'list'?"),
        (("rm",), "did you mean 'remove'?"),
        (("cancel",), "did you mean 'jobs cancel'?"),
        (("jobs", "ls"), "did you mean 'list'?"),
        (("schedule", "list"), "did you mean 'schedules'?"),
        (("schedules", "show"), "did you mean 'status'?"),
        (("schedules", "pause", "--al"), "did you mean '--all'?"),
        (("frobnicate",), "--help lists the commands"),
        (("next", "s", "--count", "3"), "did you mean '--limit'?"),
        (("remove", "s", "--force"), "did you mean '--yes'?"),
        (("--urll", "x", "list"), "did you mean '--url'?"),
        (("list", "--frob"), "--help lists the options"),
    ],
)
def test_unknown_commands_and_options(words: tuple[str, ...], hint: str) -> None:
    said = refused(run(None, *words))
    assert said.startswith(("there is no command ", "there is no option "))
    assert said.endswith(f"; {hint}")


def test_options_of_the_whole_after_the_command() -> None:
    assert refused(run(None, "list", "-A", "x")).endswith("program -A … list")
    assert refused(run(None, "list", "--url", "x")).endswith("program --url … list")
    said = refused(run(None, "schedules", "list", "--url", "x"))
    assert said.endswith("program --url … schedules list")


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("mysql://u:secret@h/d", "mysql://"),
        ("gibberish", "postgresql://"),
        ("postgresql://u@h:12x/secret", "port"),
        ("postgresql://u:secret@127.0.0.1/d?colour=red", '"colour"'),
    ],
)
def test_a_url_that_is_none(url: str, named: str) -> None:
    said = refused(run(url, "list"))
    assert named in said
    assert "secret" not in said


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        said = refused(run(f"postgresql://u:secret@127.0.0.1:{port}/d", "list"), 1)
    assert said.startswith(f"can't reach database 'd' on 127.0.0.1:{port} as u: ")
    assert said.endswith("Connection refused")


def test_a_host_that_has_no_address() -> None:
    said = refused(run("postgresql://u:secret@nowhere.invalid/d", "list"), 1)
    assert "nowhere.invalid" in said


def test_a_database_that_is_not_there(database: str) -> None:
    name = database.partition("?")[0].rpartition("/")[2]
    said = refused(run(database.replace(name, "nosuch"), "list"), 1)
    assert said.endswith('database "nosuch" does not exist')


def test_a_database_without_the_schema(empty_database: str) -> None:
    for command in (["list"], ["add", "x", "--every", "5", "--task", "t"], ["explain", "x"]):
        assert "`pgbeat migrate`" in refused(run(empty_database, *command), 1)


def test_a_role_that_may_not(ordinary_role: Role) -> None:
    assert refused(run(ordinary_role.dsn, "list"), 1) == (
        "the database refused: permission denied for schema pgbeat; "
        "`pgbeat doctor` lists the missing permissions"
    )


def test_an_argument_that_is_no_text(database: str) -> None:
    assert "UTF-8" in refused(run(database, "status", "\udcff"))


def test_an_argument_that_is_much_too_long(database: str) -> None:
    """Errors show only its start and end."""
    long = "x" * 100_000
    for arguments, end in {
        ("add", "s", "--task", "t", "--every", long): "'1h 30m' or '2 days'",
        ("add", "s", "--task", "t", "--cron", long): 'or "0 2 * * mon-fri"',
        ("status", long): "shows all schedules",
    }.items():
        said = run(database, *arguments).stderr.strip()
        assert len(said) < 1000
        assert " … " in said and said.endswith(end)


# -- the app -----------------------------------------------------------------------------------


def test_the_app_is_found_beside_us(database: str) -> None:
    shown = shell(*PGBEAT, "-A", "tests.support.apps.basic", "list", TESTS_DATABASE=database)
    assert (shown.returncode, shown.stdout) == (
        0,
        "There are no schedules; `pgbeat add --help` says how to add one.\n",
    )


def test_the_app_is_found_in_the_workdir(database: str, tmp_path: Path) -> None:
    shown = shell(
        *PGBEAT,
        "--workdir",
        str(ROOT),
        "-A",
        "tests.support.apps.basic",
        "list",
        cwd=tmp_path,
        TESTS_DATABASE=database,
    )
    assert shown.returncode == 0, shown.stderr


def test_the_url_wins_over_the_app(database: str) -> None:
    shown = shell(*PGBEAT, "-A", "tests.support.apps.basic", "list", PGBEAT_URL=database)
    assert shown.returncode == 0, shown.stderr


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (None, "-A broken: there is no module 'broken' in {folder} or on Python's path"),
        (
            "x = 1\ny = z",
            "-A broken can't be loaded: NameError: name 'z' is not defined "
            "({folder}/broken.py, line 2)",
        ),
        (
            "x = (",
            "-A broken can't be loaded: SyntaxError: '(' was never closed "
            "({folder}/broken.py, line 1)",
        ),
        ("x = 1", "-A broken: there is no Celery app in it"),
        ("app = 5", "-A broken is not a Celery app (int); name the module, or module:attribute"),
    ],
)
def test_an_app_that_is_none(module: str | None, sentence: str, tmp_path: Path) -> None:
    if module is not None:
        (tmp_path / "broken.py").write_text(module)
    shown = shell(*PGBEAT, "-A", "broken", "list", cwd=tmp_path)
    assert shown.returncode == 2
    assert shown.stderr == f"Error: {sentence.format(folder=tmp_path)}\n"


@pytest.mark.parametrize("command", [PGBEAT, CELERY])
def test_settings_that_cannot_be_read(command: list[str], tmp_path: Path) -> None:
    late = "from celery import Celery\napp = Celery('shop')\napp.config_from_object('nosuch')"
    (tmp_path / "broken.py").write_text(late)
    as_celerys = command is CELERY
    shown = shell(*command, "-A", "broken", *["pgbeat"] * as_celerys, "list", cwd=tmp_path)
    assert shown.returncode == 2
    name = "shop" if as_celerys else "broken"
    reason = f"-A {name} can't be loaded: ModuleNotFoundError: No module named 'nosuch' ("
    assert shown.stderr.startswith(f"Error: {reason}")


def test_an_attribute_that_is_not_there() -> None:
    said = refused(run(None, "-A", "tests:nope", "list"))
    assert said == "-A tests:nope: module 'tests' has no 'nope'"
    assert refused(run(None, "-A", "", "list")).startswith("-A is empty")


def test_a_read_only_server(database: str) -> None:
    option = "options=-cdefault_transaction_read_only%3Don"
    said = refused(run(f"{database}{'&' if '?' in database else '?'}{option}", "pause", "s"), 1)
    assert "is read-only" in said
    assert "can't reach" not in said


@pytest.mark.slow
def test_as_a_command_of_celerys(database: str) -> None:
    celery = [*CELERY, "-A", "tests.support.apps.basic", "pgbeat"]
    added = shell(
        *celery, "add", "sum", "--task", "tests.add", "--every", "1h", TESTS_DATABASE=database
    )
    assert (added.returncode, added.stdout[:22]) == (0, "Added schedule 'sum'. ")
    asked = shell(*celery, "trigger", "sum", TESTS_DATABASE=database)
    assert (asked.returncode, asked.stdout[:14]) == (0, "launched: job ")
    missing = shell(*celery, "status", "sun", TESTS_DATABASE=database)
    assert missing.returncode == 1
    assert "'sum'" in missing.stderr
    unknown = shell(
        *celery, "add", "x", "--task", "tests.ad", "--every", "5", TESTS_DATABASE=database
    )
    assert unknown.returncode == 2
    assert "'tests.add'" in unknown.stderr


@pytest.mark.slow
def test_as_a_command_of_celerys_without_an_app(database: str) -> None:
    celery = [*CELERY, "pgbeat"]
    neither = shell(*celery, "list")
    assert neither.returncode == 2
    assert neither.stderr.startswith("Error: which database?")
    assert shell(*celery, "--url", database, "list").returncode == 0


# -- pipes and signals -------------------------------------------------------------------------


def test_a_closed_pipe_is_no_error(database: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    shown = shell(*PGBEAT, "--url", database, "list", "--json", stdout=writing)
    os.close(writing)
    assert (shown.returncode, shown.stderr) == (141, "")


def test_the_apps_of_the_docs_find_their_tasks_and_launchers(database: str, tmp_path: Path) -> None:
    blocks = re.findall(
        r"```python\n# proj/(\w+).py\n(.*?)```", (ROOT / "README.md").read_text(), re.S
    )
    (tmp_path / "proj").mkdir()
    task = "from proj.celery import app\n@app.task\ndef consolidate(strategy): ...\n"
    for name, content in [*blocks, ("tasks", task), ("__init__", "")]:
        (tmp_path / f"proj/{name}.py").write_text(content)
    page = (ROOT / "docs/tutorial/index.md").read_text()
    for name, content in re.findall(r'```python title="([\w.]+)".*?\n(.*?)```', page, re.S):
        (tmp_path / name).write_text(content)  # the app again, once it has launchers
    for app, launcher in (("proj", "Consolidate"), ("shop", "Restock")):
        command = [*PGBEAT, "-A", app, "--url", database, "add", app, "--every", "1h"]
        shown = shell(*command, "--launcher", launcher, cwd=tmp_path)
        assert (shown.returncode, shown.stderr) == (0, "")


def test_standard_output_and_error_are_closed(database: str) -> None:
    command = ("sh", "-c", '"$@" >&- 2>&-', "sh", *PGBEAT, "--url", database)
    assert shell(*command, "list").returncode == 0
    assert shell(*command, "status", "none").returncode == 1


def test_a_full_disk(database: str) -> None:
    with Path("/dev/full").open("wb") as full:
        shown = shell(*PGBEAT, "--url", database, "list", stdout=full.fileno())
        errors = shell(*PGBEAT, "--url", database, "list", "--json", stdout=full.fileno())
    assert shown.returncode == errors.returncode == 1
    assert shown.stderr == errors.stderr == "Error: [Errno 28] No space left on device\n"


def test_interrupted(processes: Processes, sql: Sql) -> None:
    make_schedule(sql, condition_sql="SELECT true FROM pg_sleep(60)")
    waiting = (
        "SELECT 1 FROM pg_stat_activity "
        "WHERE query LIKE '%%pgbeat.query_conditions%%' AND state = 'active'"
    )
    process = processes.run(*PGBEAT, "-A", "tests.support.apps.basic", "trigger", "s")
    until(lambda: len(sql(waiting)) > 1, what="the condition runs")
    process.send_signal(signal.SIGINT)
    assert (process.wait(10), process.output) == (130, "")


INTERRUPTED_AT = """
import os, runpy, signal, sys
module = sys.argv.pop(1)
class Finder:
    def find_spec(self, name, *args):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
runpy.run_module("pgbeat", run_name="__main__")
"""


@pytest.mark.parametrize(
    "module", ["pgbeat.cli", "click", "pgbeat.cli.schedules.views", "sqlalchemy"]
)
def test_interrupted_while_it_imports(module: str) -> None:
    done = shell(sys.executable, "-c", INTERRUPTED_AT, module, "list")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


# -- the schema --------------------------------------------------------------------------------


def test_migrate(empty_database: str) -> None:
    newest = migrate.newest()
    checked = read(empty_database, "migrate", "--check")
    assert [one["version"] for one in checked.pop("pending")] == migrate.known()
    assert checked == {
        "current": None,
        "newest": newest,
        "minimum": None,
        "usable": False,
        "missing": [],
    }
    said = refused(run(empty_database, "migrate", "--check"), 1)
    assert said == "the database has no pgbeat schema; run `pgbeat migrate`"
    assert run(empty_database, "migrate").stdout == (
        f"The schema is installed, at version {newest}.\n"
    )
    assert run(empty_database, "migrate").stdout == (
        f"The schema is at {newest} already, the newest version.\n"
    )
    checked = run(empty_database, "migrate", "--check")
    assert (checked.exit_code, checked.stdout) == (
        0,
        f"The schema is at {newest}, the newest version.\n",
    )
    assert read(empty_database, "migrate", "--check") == {
        "current": newest,
        "newest": newest,
        "minimum": "0001",
        "usable": True,
        "missing": [],
        "pending": [],
    }


def test_migrate_names_and_restores_what_is_missing(database: str, sql: Sql) -> None:
    sql("DROP FUNCTION pgbeat.dead_consumers()")
    lost = ["function pgbeat.dead_consumers()"]
    assert read(database, "migrate", "--check")["missing"] == lost
    checked = run(database, "migrate", "--check")
    assert (checked.exit_code, lost[0] in checked.stdout) == (1, True)
    assert read(database, "migrate")["restored"] == lost
    assert run(database, "migrate", "--check").exit_code == 0


def test_migrate_says_what_it_renames(empty_database: str) -> None:
    """Here tables of kombu's SQLAlchemy transport; the audit log has it, too."""
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute("CREATE TABLE q (id bigint PRIMARY KEY, name varchar(200) UNIQUE)")
        connection.execute(
            "CREATE TABLE m (id bigint PRIMARY KEY, visible boolean, timestamp timestamp, "
            "payload text NOT NULL, version smallint NOT NULL, queue_id bigint)"
        )
    names = ["--queue-table", "q", "--message-table", "m"]
    assert run(empty_database, "migrate", *names).stdout.splitlines()[1:] == [
        "Table q is kombu_queue now.",
        "Table m is kombu_message now.",
    ]
    assert read(empty_database, "migrate", *names)["renamed"] == {}
    (entry,) = read(empty_database, "audit")
    assert entry["after"]["renamed"] == {"q": "kombu_queue", "m": "kombu_message"}


def test_a_schema_from_the_future(database: str, sql: Sql) -> None:
    sql("UPDATE pgbeat.migrations SET version_num = '9999', oldest_program = '9999'")
    # Nor may a command change what it doesn't know.
    for command in (
        "migrate",
        "migrate --check",
        "migrate --sql",
        "lanes set x --limit 2",
        "pause --all --yes --admin",
        "add x --task t --every 5",
    ):
        said = refused(run(database, *command.split()), 1)
        assert "9999, which admits programs from 9999 on" in said
        assert said.endswith("upgrade pgbeat")
    assert sql("SELECT FROM pgbeat.lanes UNION ALL SELECT FROM pgbeat.schedules") == []


def test_migrate_sql_needs_no_database() -> None:
    printed = run(None, "migrate", "--sql")
    assert printed.exit_code == 0
    assert printed.stdout.startswith("BEGIN;")
    assert "CREATE TABLE pgbeat.schedules" in printed.stdout
