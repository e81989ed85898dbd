"""The command line: `pgbeat …`, and the same commands as `celery -A app pgbeat …`.

This module imports nothing heavy: Celery loads it for each of its own commands too.
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from pgbeat import __version__, follow_workers
from pgbeat.suggest import did_you_mean

#: Keys of click's `Context.meta`: the `Target`, and whether the command prints JSON.
TARGET, AS_JSON = "pgbeat.cli.target", "pgbeat.cli.as_json"

#: Each command's module and what the list of commands says about it.
COMMANDS = {
    "add": ("definitions", "Add a schedule."),
    "audit": ("audit", "Show who changed what."),
    "backfill": ("backfill", "Launch what a schedule was due for in the past and missed."),
    "calendars": ("calendars", "Look at calendars, change them, ask them."),
    "check": ("check", "Say what would become of a schedule now, launching nothing."),
    "cursor": ("cursors", "Look at a launcher's cursor, set it, clear it."),
    "dead": ("dead_letters", "Look at dead letters, put them back or drop them."),
    "demo": ("setup", "Show pgbeat at work."),
    "direct": ("direct", "Run a task here and now, before all that waits in a lane."),
    "disable": ("switches", "Take a schedule out of service."),
    "doctor": ("doctor", "Check the database, the beat and the broker."),
    "enable": ("switches", "Put a disabled schedule back in service."),
    "export": ("files", "Write the schedules as a file that declares them."),
    "explain": ("explain", "Say why a schedule did or didn't run."),
    "forecast": ("forecast", "Show what will be due when."),
    "groups": ("groups", "Look at groups of jobs, make one, cancel one."),
    "history": ("ticks", "Show a schedule's last ticks."),
    "import": ("moving", "Move schedules in from another beat."),
    "jobs": ("jobs", "Look at jobs, make them, hold, end and retry them."),
    "lanes": ("lanes", "Look at lanes, change them, hold them."),
    "list": ("views", "List the schedules."),
    "metrics": ("metrics", "Print the metrics, in Prometheus' text format."),
    "migrate": ("setup", "Bring the database's schema to the newest version."),
    "next": ("views", "Show when a schedule is due next."),
    "pause": ("switches", "Hold a schedule, or all, until it is resumed."),
    "prune": ("prune", "Delete what is older than it is kept."),
    "queues": ("queues", "Show the queues; pause, resume or purge one."),
    "remove": ("switches", "Delete a schedule."),
    "resume": ("switches", "Let a paused schedule, or all, go on."),
    "status": ("views", "Show all about a schedule."),
    "sync": ("files", "Make the schedules be what a file says."),
    "templates": ("templates", "Look at templates, and change them."),
    "tokens": (
        "tokens",
        "Make tokens for the API and the console, list them, put them out of use.",
    ),
    "trigger": ("ticks", "Decide a schedule now."),
    "update": ("definitions", "Change a schedule."),
    "web": ("web", "Serve the REST API and the console."),
    "webhooks": ("webhooks", "Have others told of what happens; look at deliveries."),
}


class Group(click.Group):
    """A group that names the nearest of its commands for a name that is none."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command named first."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            hint = did_you_mean(name, known) or "see --help for those there are"
            ctx.fail(f"there is no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)


class Noun(Group):
    """A group of commands on one kind of thing; without a command it shows its help."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The arguments that are left."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()
        return super().parse_args(ctx, args)


class Commands(Group):
    """A group whose commands are imported when they are called, and whose errors are sentences."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, its module imported."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"pgbeat.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, none of them imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; an error that has a sentence is shown as that."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(130) from None
        except click.NoSuchOption as error:
            right = _misplaced(ctx, error)
            if right is None:
                raise
            ctx.fail(right)
        except click.ClickException as error:
            _shorten(error)
            raise
        except (click.Abort, click.exceptions.Exit, BrokenPipeError):
            raise
        except Exception as error:
            from pgbeat.cli.failures import as_json, refusal

            sentence = refusal(error, ctx.meta.get(TARGET))
            if sentence is None:
                raise
            _shorten(sentence)
            if ctx.meta.get(AS_JSON):
                click.echo(json.dumps(as_json(error, sentence), ensure_ascii=False))
            raise sentence from None


#: Characters of a line of an error, at most; what was typed may be a megabyte.
_LONGEST = 3000


def _shorten(error: click.ClickException) -> None:
    """Takes the middle out of lines that are too long."""
    error.message = "\n".join(  # type: ignore[misc,unused-ignore]
        line if len(line) <= _LONGEST else f"{line[:200]} … {line[-200:]}"
        for line in error.message.split("\n")
    )


def _misplaced(ctx: click.Context, error: click.NoSuchOption) -> str | None:
    """What to say about an option of the whole that was given after the command's name."""
    command = error.ctx.command_path.removeprefix(ctx.command_path).strip() if error.ctx else ""
    for options, owner in ((("-A", "--app", "--workdir"), ctx.find_root()), (("--url",), ctx)):
        if error.option_name in options:
            between = ctx.command_path.removeprefix(owner.command_path)
            right = f"{owner.command_path} {error.option_name} …{between} {command}"
            return f"{error.option_name} goes before the command: {right}"
    return None


_url = click.option("--url", envvar="PGBEAT_URL", help="The database; wins over the app's.")


@click.group(cls=Commands, invoke_without_command=True)
@_url
@click.pass_context
def pgbeat(ctx: click.Context, /, url: str | None, **preload: object) -> None:
    """Schedules of pgbeat: look at them, change them, find out why they did or didn't run."""
    from pgbeat.cli.target import Target

    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        ctx.exit()
    # A program that hands over its app may have no command above ours.
    named = True if ctx.parent is None else bool(ctx.parent.params.get("app"))
    ctx.meta[TARGET] = Target(url, celery=ctx.obj, is_named=named)


@click.group(cls=Commands, invoke_without_command=True)
@click.option("-A", "--app", metavar="APP", envvar="PGBEAT_APP", help="The Celery app.")
@click.option(
    "--workdir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder to change to first.",
)
@_url
@click.version_option(__version__, message="pgbeat %(version)s")
@click.pass_context
def program(ctx: click.Context, app: str | None, workdir: Path | None, url: str | None) -> None:
    """A Celery beat scheduler on Postgres: schedules, conditions, history and broker in one place.

    Commands that only read and switch need a database: --url, or the app's. Those that launch, or
    check what can be launched, need the app.
    """
    from pgbeat.cli.target import Target

    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        ctx.exit()
    ctx.meta[TARGET] = Target(url, name=app, workdir=workdir)


def main() -> None:
    """The console script."""
    for name in ("stdout", "stderr"):  # None where whoever started us has closed it
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    try:
        program(prog_name="pgbeat")
    except KeyboardInterrupt:
        sys.exit(130)


# As one of Celery's commands we are here before its worker is.
follow_workers()
