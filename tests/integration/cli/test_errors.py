"""`pgbeat errors`."""

from celery import Celery

from tests.support.command_line import Sql, read, refused, run, run_with
from tests.support.rows import make_job


def test_errors_as_lines(sql: Sql, database: str) -> None:
    for number, kind in enumerate("abcdefghijkl"):
        error = f"HTTPError: {number} Server Error for url: https://x.example/{number}"
        make_job(sql, "failed", task=f"shop.tasks.import_{kind}", schedule=kind * 30, error=error)
    make_job(sql, "failed", task="b", error="KeyError: 'a'")
    shown = run(database, "errors", "--since", "2h").stdout.splitlines()
    assert "13 jobs failed" in shown[0]
    assert shown[1].split()[:3] == ["12", "×", "HTTPError:"]
    [group] = read(database, "errors", "--task", "b", "--since", "7d")["groups"]
    assert group["jobs"] == 1
    limited = run(database, "errors", "--limit", "1")
    assert limited.stderr.startswith("Note:")
    assert "No job of c failed" in run(database, "errors", "--task", "c").stdout
    refused(run(database, "errors", "--since", "93 days"))


def test_errors_are_masked(sql: Sql, app: Celery) -> None:
    app.conf.pgbeat_redact = {"pay": "*"}
    make_job(sql, "failed", task="pay", error="Declined: mine")
    assert "Declined: [masked]" in run_with(app, "errors").stdout
    assert "Declined: mine" in run_with(app, "errors", "--admin").stdout
