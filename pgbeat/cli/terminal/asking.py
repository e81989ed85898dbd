"""Asks before something is deleted: `--yes` and `--dry-run`."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from pgbeat.broker.publishing.unit_of_work import UnitOfWork
from pgbeat.cli import INTERRUPTED
from pgbeat.cli.terminal import printing
from pgbeat.cli.terminal.failures import BadInput
from pgbeat.cli.terminal.options import FLAG, adding, option
from pgbeat.cli.terminal.target import Target, on_target

dry_run_option = option("--dry-run", FLAG, "Say what would be done.")
yes_option = option("--yes", FLAG, "Don't ask.")
#: Adds `--dry-run` and `--json` to a command, and passes it the `Target`.
changing: Callable[[Any], Any] = adding(dry_run_option, on_target)
#: The same for a command that asks first: adds `--yes`, too.
asking: Callable[[Any], Any] = adding(yes_option, changing)


def sure(verb: str, past: str, what: str, *, yes: bool, dry_run: bool) -> bool:
    """Returns whether to do it: `sure("remove", "removed", "lane 'l'", …)`.

    If not, prints why: it is a dry run, or the user said no. With `--json`, questions and sentences
    go to standard error.
    """
    as_json = printing.is_json()
    if dry_run:
        click.echo(f"Would {verb} {what}.", err=as_json)
        return False
    try:
        if yes or click.confirm(f"{verb.capitalize()} {what}?", err=as_json):
            return True
    except click.Abort as error:
        click.echo(err=as_json)
        if isinstance(error.__context__, EOFError):
            problem = f"nothing is {past}: the question got no answer, and --yes was not given"
            raise BadInput(problem) from None
        click.echo(f"Nothing is {past}.", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    click.echo(f"Nothing is {past}.", err=as_json)
    return False


def remove(
    target: Target,
    noun: str,
    name: str,
    delete: Callable[[UnitOfWork, str], object],
    *,
    yes: bool,
    dry_run: bool,
    rest: str = "",
    more: Mapping[str, Any] | None = None,
) -> bool:
    """Deletes a named thing if the user is sure; returns whether it did.

    `rest` says what else goes with it, and `more` does in JSON. Tries it in a dry run first, so
    that an error comes before the question.
    """
    what = f"{noun} {name!r}{rest}"
    with target.unit(dry_run=True) as unit:
        delete(unit, name)
    is_removed = sure("remove", "removed", what, yes=yes, dry_run=dry_run)
    if is_removed:
        with target.unit() as unit:
            delete(unit, name)
    if is_removed or printing.is_json():
        printing.result({"name": name, "removed": is_removed, **(more or {})}, f"Removed {what}.")
    return is_removed
