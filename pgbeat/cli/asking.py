"""Asked before something is deleted: `--yes` and `--dry-run`."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from pgbeat.cli import AS_JSON

F = TypeVar("F", bound=Callable[..., Any])

dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done.")


def _note(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    ctx.meta[AS_JSON] = value
    return value


json_option = click.option(
    "--json", "as_json", is_flag=True, is_eager=True, callback=_note, help="Print JSON."
)
yes_option = click.option("--yes", is_flag=True, help="Don't ask.")


def asking(command: F) -> F:
    """Adds both options."""
    return yes_option(dry_run_option(command))


def sure(
    verb: str, past: str, what: str, *, yes: bool, dry_run: bool, as_json: bool = False
) -> bool:
    """Returns whether to do it: `sure("remove", "removed", "lane 'l'", …)`.

    If not, it prints why: it was a dry run, or the person said no. With `as_json`, standard output
    is left to the JSON.
    """
    if dry_run:
        click.echo(f"Would {verb} {what}.", err=as_json)
        return False
    if yes or click.confirm(f"{verb.capitalize()} {what}?", err=as_json):
        return True
    click.echo(f"Nothing is {past}.", err=as_json)
    return False
