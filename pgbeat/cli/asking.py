"""Asked before something is deleted: `--yes` and `--dry-run`."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done.")
yes_option = click.option("--yes", is_flag=True, help="Don't ask.")


def asking(command: F) -> F:
    """Adds both options."""
    return yes_option(dry_run_option(command))


def sure(verb: str, past: str, what: str, *, yes: bool, dry_run: bool) -> bool:
    """Whether it is to be done: `sure("remove", "removed", "lane 'l'", …)`. If not, it is said why:
    it was only to be said what would be done, or who was asked said no."""
    if dry_run:
        click.echo(f"Would {verb} {what}.")
        return False
    if yes or click.confirm(f"{verb.capitalize()} {what}?"):
        return True
    click.echo(f"Nothing is {past}.")
    return False
