"""`pgbeat doctor`: checks of the database, the beat and the broker."""

import click
from rich.text import Text
from sqlalchemy.exc import DBAPIError

from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.failures import FAILED, unreachable
from pgbeat.cli.terminal.printing import Cell
from pgbeat.cli.terminal.target import Target, on_target
from pgbeat.database import connections
from pgbeat.monitoring import runbook
from pgbeat.monitoring.checks.doctor import checks
from pgbeat.monitoring.checks.server_checks import Check


@click.command("doctor")
@on_target
def doctor_command(target: Target) -> None:
    """Check the database, the beat and the broker, and say what to do. Exits with 1 on a failure.

    With the app (-A), its broker is checked, too.

    Its JSON has `ok` (nothing failed) and `checks` (`check`, `result`, `detail`, `advice`, and
    `runbook`, its section on that); a result is `ok`, `warn`, `fail` or `unknown`.
    """
    results: list[Check] = []
    try:
        results.extend(checks(target.settings, target.app))
    except DBAPIError as error:
        if not connections.is_lost(error):
            raise
        advice = "Is it running, and is the URL right?"
        results.append(Check("server", "fail", unreachable(error, target), advice))
    is_well = all(check.result != "fail" for check in results)
    if printing.is_json():
        printing.echo_json({"ok": is_well, "checks": [_fields(check) for check in results]})
    else:
        printing.show_table([_cells(check) for check in results], folding={"what was found"})
    raise click.exceptions.Exit(0 if is_well else FAILED)


def _fields(check: Check) -> dict[str, str]:
    return {**check._asdict(), "runbook": runbook.of_check(check.check, check.result)}


def _cells(check: Check) -> dict[str, Cell]:
    detail = Text(printing.line(check.detail))
    if check.advice:
        detail.append(f"\n{printing.line(check.advice)}", style="bold")
    if link := runbook.of_check(check.check, check.result):
        detail.append(f"\n{link}")
    result = printing.styled(check.result)
    return {"check": check.check, "result": result, "what was found": detail}
