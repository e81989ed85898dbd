"""`pgbeat import crontab`: crontabs of users and of the system."""

from pathlib import Path

import pytest

from pgbeat.schedules.importers import crontab
from tests.support.command_line import Sql, read, refused, run

TASK = ("--task", "shop.tasks.shell")
CRONTAB = r"""
# Backups.
SHELL = /bin/bash
MAILTO="ops@example.com"
0 2 * * mon-fri   /usr/local/bin/backup --all
30 14 * * sat	/usr/local/bin/backup --all
@reboot /usr/local/bin/warm
0 0 * * * mail -s hello ops%Hello.
CRON_TZ = "Asia/Tokyo"
@Daily  echo {{ x }} \%Y
*/5 9-17 * * 1-5 /opt/a/run
*/5 9-17 * * 1-5 /opt/b/run
0 2 * * * /usr/local/bin/backup --all
61 * * * * odd
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "crontab"
    path.write_text(CRONTAB)
    return path


def test_each_command_becomes_a_row(database: str, path: Path, sql: Sql) -> None:
    command = ("import", "crontab", "--from", str(path), *TASK, "--timezone", "Europe/Oslo")
    planned = run(database, *command, "--dry-run")
    assert "Would add 5 schedules:" in planned.stdout
    assert sql("SELECT 1 FROM pgbeat.schedules") == []
    result = run(database, *command)
    assert result.stdout.startswith(f"8 schedules of cron in {path}.\nAdded 5 schedules:")
    rows = sql("SELECT name, cron, timezone, args FROM pgbeat.schedules ORDER BY id")
    backup, oslo, tokyo = "/usr/local/bin/backup --all", "Europe/Oslo", "Asia/Tokyo"
    office = "*/5 9-17 * * 1-5"
    assert rows == [
        (
            "backup --all (Europe-Oslo)", "0 2 * * mon-fri\n30 14 * * sat", oslo, [backup],
        ),
        ("echo {{ x }} %Y", "@Daily", tokyo, ["echo {{ '{{' }} x }} %Y"]),
        ("-opt-a-run", office, tokyo, ["/opt/a/run"]),
        ("-opt-b-run", office, tokyo, ["/opt/b/run"]),
        ("backup --all (Asia-Tokyo)", "0 2 * * *", tokyo, [backup]),
    ]  # fmt: skip
    refusals = result.stdout.partition("Not imported:")[2]
    for word in ("@reboot", "a %", "'61'"):
        assert word in refusals
    assert "settings are not carried over: MAILTO, SHELL" in result.stderr
    assert "remove these lines from cron's files before pgbeat's beat starts" in result.stderr
    assert "5 schedules here" in run(database, *command).stdout
    path.write_text(CRONTAB.replace("30 14", "45 14"))
    assert "differs in cron" in run(database, *command).stdout
    run(database, *command, "--overwrite")
    assert "45 14" in read(database, "status", "backup --all (Europe-Oslo)")["cron"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("* * * * * /usr/bin/env x\n", ["env x"]),
        ("* * * * * ~/bin/x --to /tmp", ["x --to /tmp"]),
        ("* * * * * A=/b/c x", ["A=/b/c x"]),
        ("* * * * * cd /srv && ./x", ["cd /srv && ./x"]),
        ("* * * * * /a/x\n* * * * * x", ["/a/x", "x"]),
        ("1 * * * * x\n2 * * * * x\n1 * * * * x", ["x"]),
        ("* * * * * x\nCRON_TZ=Asia/Tokyo\n* * * * * x", ["x (UTC)", "x (Asia/Tokyo)"]),
    ],
)
def test_names_are_as_short_as_they_are_unambiguous(text: str, names: list[str]) -> None:
    found = crontab.inventory("x", text, task="t", timezone="UTC").arrivals
    assert [arrival.origin for arrival in found] == names


def test_lines_of_the_system_name_users(database: str) -> None:
    text = "1 2 * * * root cd / && x\n@daily www-data y\n1 2 * * * bin y"
    command = ("import", "crontab", "--from", "-", *TASK, "--system", "--timezone", "UTC")
    shown = run(database, *command, input=text).stdout
    assert "cron ran it as root" in shown and "cron ran it as www-data" in shown
    found = {row["name"]: (row["cron"], *row["args"]) for row in read(database, "list")}
    assert found == {
        "cd - && x": ("1 2 * * *", "cd / && x"),
        "y (UTC, www-data)": ("@daily", "y"),
        "y (UTC, bin)": ("1 2 * * *", "y"),
    }
    assert crontab.is_system("/etc/crontab") and crontab.is_system("/etc/cron.d/php")
    assert not crontab.is_system("/var/spool/cron/crontabs/root")


def test_a_zone_has_to_be_known(database: str) -> None:
    given = "TZ=Asia/Tokyo\n0 2 * * * x\nCRON_TZ=Mars/Phobos\n0 2 * * * y"
    result = run(database, "import", "crontab", "--from", "-", *TASK, input=given)
    assert "give its name with --timezone" in result.stdout
    assert "'Mars/Phobos'" in result.stdout
    assert "not carried over: TZ" in result.stderr
    assert read(database, "list") == []


def test_files_that_are_none(database: str, path: Path, sql: Sql) -> None:
    command = ("import", "crontab", *TASK, "--timezone", "UTC", "--from")
    path.write_text("0 2 * * * fine\n0 2 * *\n@daily\n")
    said = refused(run(database, *command, str(path)))
    assert f"{path} has 2 mistakes; nothing is written" in said
    assert f'{path}:2:1: expected a line such as "0 2 * * * backup"' in said
    path.write_bytes(b"0 2 * * * \xff")
    assert "is not UTF-8" in refused(run(database, *command, str(path)))
    assert "does not exist" in refused(run(database, *command, f"{path}.gone"))
    assert "--task" in refused(run(database, "import", "crontab", "--from", str(path)))
    assert sql("SELECT 1 FROM pgbeat.schedules") == []
