"""`pgbeat doctor`: checks of the database, the beat and the broker."""

import click
from rich.text import Text
from sqlalchemy.exc import DBAPIError

from pgbeat.cli import printing
from pgbeat.cli.failures import FAILED, unreachable
from pgbeat.cli.target import Target, pass_target
from pgbeat.cli.views import json_option
from pgbeat.database import connections
from pgbeat.monitoring.doctor import Check, checks


@click.command("doctor")
@json_option
@click.pass_context
@pass_target
def doctor_command(target: Target, ctx: click.Context, as_json: bool) -> None:
    """Check the database, the beat and the broker, and say what to do. Exits with 1 on a failure.

    With the app (-A), its broker is looked at, too.
    """
    found: list[Check] = []
    try:
        found.extend(checks(target.settings, target.app))
    except DBAPIError as error:
        if not connections.is_lost(error):
            raise
        found.append(
            Check(
                "server",
                "fail",
                unreachable(error, target),
                "Is it running, and is the URL right?",
            )
        )
    is_well = all(check.result != "fail" for check in found)
    if as_json:
        printing.echo_json({"ok": is_well, "checks": [check._asdict() for check in found]})
    else:
        table = printing.table("check", "result", "what was found", folding={"what was found"})
        for check in found:
            detail = Text(printing.line(check.detail))
            if check.advice:
                detail.append(f"\n{printing.line(check.advice)}", style="bold")
            table.add_row(check.check, printing.styled(check.result), detail)
        printing.show(table)
    ctx.exit(0 if is_well else FAILED)
