"""`manage.py pgbeat …`: pgbeat's command line, for the project's Celery app."""

from argparse import REMAINDER, ArgumentParser
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

from celery.bin.base import CLIContext
from django.core.management.base import BaseCommand, CommandError

from pgbeat.integrations.django import databases

#: Options of manage.py's own, which it has read before, and which take a value.
_READ = ("--settings", "--pythonpath")


class Command(BaseCommand):
    """Passes its arguments to pgbeat's command line."""

    help = "Look at pgbeat's schedules and jobs, change them, find out why they did or didn't run."
    requires_system_checks: Sequence[str] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Runs `manage.py pgbeat …` and exits with its code."""
        _main(_without_read(argv[2:]))

    def print_help(self, prog_name: str, subcommand: str) -> None:
        """Prints the help of `manage.py help pgbeat`."""
        _main(["--help"])

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Takes all arguments of `call_command("pgbeat", …)`."""
        parser.add_argument("arguments", nargs=REMAINDER)

    def handle(self, *args: Any, arguments: list[str], **options: Any) -> None:
        """Runs a command for `call_command`. Raises `CommandError` if it fails."""
        try:
            _main(arguments)
        except SystemExit as end:
            if end.code:
                code = end.code if isinstance(end.code, int) else 1
                message = f"pgbeat {' '.join(arguments)} failed with exit code {code}"
                raise CommandError(message, returncode=code) from None


def _main(arguments: Sequence[str]) -> None:
    # The command line stands above the integrations: it is found as Celery finds it.
    [entry] = entry_points(group="celery.commands", name="pgbeat")
    context = CLIContext(app=databases.any_app(), no_color=False, workdir=None, quiet=False)
    entry.load().main(args=list(arguments), prog_name="manage.py pgbeat", obj=context)


def _without_read(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments without those before the command that manage.py has read."""
    left = list(arguments)
    while left and left[0].partition("=")[0] in _READ:
        del left[: 1 if "=" in left[0] else 2]
    return left
