"""The command line: `pgbeat …`, and the same commands as `celery -A app pgbeat …`.

This module imports nothing heavy: Celery loads it for each of its own commands, too.
"""

import json
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from pgbeat.integrations.django import follow_apps
from pgbeat.suggest import did_you_mean, nearest
from pgbeat.version import __version__

#: Exit statuses after Ctrl-C, and after the output's reader has gone: those that shells give to
#: programs that a signal ended.
INTERRUPTED, CLOSED_PIPE = 130, 141

#: Keys of click's `Context.meta`: the `Target`, what makes it for a command that starts without it,
#: where the command prints JSON, if it does, and whether `--json` is among the arguments.
TARGET, LATE_TARGET = "pgbeat.cli.target", "pgbeat.cli.late_target"
AS_JSON, _WANTS_JSON = "pgbeat.cli.as_json", "pgbeat.cli.wants_json"
#: The command that may be called every few seconds, by a probe.
_QUICK = "health"

#: Each command's module and what the list of commands says about it: those on schedules, which
#: are also `pgbeat schedules …`, and all.
SCHEDULES = {
    "add": ("schedules.definitions", "Add a schedule."),
    "backfill": ("schedules.backfill", "Launch the due times that a schedule missed."),
    "check": ("schedules.check", "Say what would happen to a schedule now; launch nothing."),
    "cursor": ("schedules.cursors", "Look at a launcher's cursor, set it, clear it."),
    "disable": ("schedules.switches", "Disable a schedule, or all, until it is enabled again."),
    "enable": ("schedules.switches", "Enable a disabled schedule, or all."),
    "export": ("schedules.files", "Write schedules as a file."),
    "explain": ("schedules.explain", "Say why a schedule did or didn't run."),
    "forecast": ("schedules.forecast", "Show which schedules will be due, and when."),
    "history": ("schedules.ticks", "Show a schedule's last ticks."),
    "import": ("schedules.moving", "Import schedules from another scheduler's store."),
    "list": ("schedules.views", "List the schedules."),
    "next": ("schedules.views", "Show when a schedule is due next."),
    "pause": ("schedules.switches", "Pause a schedule, or all."),
    "remove": ("schedules.switches", "Delete a schedule."),
    "resume": ("schedules.switches", "Resume a paused schedule, or all."),
    "status": ("schedules.views", "Show all about a schedule."),
    "sync": ("schedules.files", "Make the schedules match a file."),
    "trigger": ("schedules.ticks", "Evaluate a schedule now."),
    "update": ("schedules.definitions", "Change a schedule."),
}
COMMANDS = {
    **SCHEDULES,
    "all": ("operations.dev", "Run the app's worker, a beat and the console in one terminal."),
    "audit": ("operations.audit", "Show who changed what."),
    "calendars": ("schedules.calendars", "Look at calendars, change them, test a time."),
    "dead": ("broker.dead_letters", "Look at dead letters, put them back or drop them."),
    "demo": ("operations.setup", "Show pgbeat at work."),
    "dev": ("operations.dev", "Run all that an app needs in one terminal, and follow its source."),
    "direct": ("jobs.direct", "Run a task here and now, in a lane's next slot."),
    "doctor": ("operations.doctor", "Check the database, the beat and the broker."),
    "errors": ("operations.errors", "Show why jobs failed."),
    "events": ("jobs.events", "Look at the events that jobs wait for; emit one."),
    "fence": ("broker.fence", "Show what is held after a restore; hold it, or release it."),
    "grant": ("operations.setup", "Give a role of the database the rights of a profile."),
    "groups": ("jobs.groups", "Look at groups of jobs, make one, cancel one."),
    "health": (
        "operations.health",
        "Say whether this host's beat, worker or web side is alive; exit with 1 if not.",
    ),
    "jobs": ("jobs.jobs", "Look at jobs, make them, hold, end and retry them."),
    "lanes": ("jobs.lanes", "Look at lanes, change them, hold them."),
    "load": ("operations.load", "Show what ended over time, how long it waited and ran."),
    "metrics": ("operations.metrics", "Print the metrics, in Prometheus' text format."),
    "migrate": ("operations.setup", "Bring the database's schema to the newest version."),
    "prune": ("operations.prune", "Delete history that is older than the retention."),
    "queues": ("broker.queues", "Show the queues; pause, resume or purge one."),
    "schedules": ("schedules.whole_names", "Look at schedules, change them, trigger them."),
    "tasks": ("operations.load", "Show how often each task ran in 24 hours, and how long it took."),
    "templates": ("jobs.templates", "Look at templates, and change them."),
    "tokens": ("operations.tokens", "Make, list and revoke tokens for the API and the console."),
    "top": ("operations.top", "Show what runs, what waits and where, live."),
    "versions": ("broker.workers", "Show which versions of the app run, and what waits for each."),
    "web": ("operations.web", "Serve the REST API and the console."),
    "webhooks": ("operations.webhooks", "Send events to URLs; look at deliveries."),
    "workers": ("broker.workers", "Show the workers; shut one down, or change its pool or queues."),
}


class CommandGroup(click.Group):
    """A group that suggests the nearest command for an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the command that is named first."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            hint = did_you_mean(name, known) or self.elsewhere(ctx, name)
            ctx.fail(f"there is no command {name!r}; {hint or '--help lists the commands'}")
        return super().resolve_command(ctx, args)

    def elsewhere(self, ctx: click.Context, name: str) -> str:
        """Returns a hint to a command of another group; "" without one."""
        return ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads the group's own options."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise _no_such_option(error) from None


class Noun(CommandGroup):
    """The commands on one kind of thing. Shows its help if no command is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Shows the help and ends if there are no arguments."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()
        return super().parse_args(ctx, args)


class LazyGroup(CommandGroup):
    """A group that imports a command's module when the command is called."""

    #: Its part of `COMMANDS`.
    table: dict[str, tuple[str, str]]

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of all commands."""
        return sorted(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a command's module and returns the command."""
        if cmd_name not in self.table:
            return None
        module = import_module(f"pgbeat.cli.{self.table[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.table[name][1]) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Returns the commands and options that begin so, without importing the commands."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=self.table[name][1]) for name in names]
        return commands + click.Command.shell_complete(self, ctx, incomplete)


class Commands(LazyGroup):
    """All commands: shows errors as sentences."""

    table = COMMANDS

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands, those on schedules first."""
        short = "Commands on schedules (`pause NAME` is short for `schedules pause NAME`)"
        for heading, is_short in ((short, True), ("Other commands", False)):
            names = [name for name in self.list_commands(ctx) if (name in SCHEDULES) is is_short]
            with formatter.section(heading):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in names])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads the options before the command."""
        ctx.meta[_WANTS_JSON] = "--json" in args
        return super().parse_args(ctx, args)

    def elsewhere(self, ctx: click.Context, name: str) -> str:
        """Returns a hint to a command on jobs, workers or queues."""
        for noun in ("jobs", "workers", "queues"):
            group = self.get_command(ctx, noun)
            below = group.list_commands(ctx) if isinstance(group, click.Group) else []
            if near := nearest(name, below, cutoff=0.8):
                return f"did you mean '{noun} {near}'?"
        return ""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command, and shows expected errors without a traceback."""
        if isinstance(sys.stdout, TextIOWrapper):
            # What tasks and launchers print must not come after our errors in a pipe.
            sys.stdout.reconfigure(line_buffering=True)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # `| head` has seen enough
            with suppress(OSError):
                output = ctx.meta.get(AS_JSON) or sys.stdout
                os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
            raise click.exceptions.Exit(CLOSED_PIPE) from None
        except click.NoSuchOption as error:
            right = _misplaced(ctx, error)
            usage = click.UsageError(right, ctx) if right else _no_such_option(error)
            _print_json(ctx, usage, usage)
            raise usage from None
        except click.ClickException as error:
            _shorten(error)
            _print_json(ctx, error, error)
            raise
        except (click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            from pgbeat.cli.terminal.failures import refusal

            sentence = refusal(error, ctx.meta.get(TARGET)) or _unreadable_settings(ctx)
            if sentence is None:
                raise
            _shorten(sentence)
            _print_json(ctx, error, sentence)
            raise sentence from None


def _print_json(ctx: click.Context, error: Exception, sentence: click.ClickException) -> None:
    """Prints an error for programs, if the command prints JSON, or would if it could be read."""
    is_unread = isinstance(error, click.UsageError) and ctx.meta.get(_WANTS_JSON)
    if ctx.meta.get(AS_JSON) or is_unread:
        from pgbeat.cli.terminal.failures import as_json

        with suppress(OSError):  # perhaps that is the error
            click.echo(json.dumps(as_json(error, sentence)), file=ctx.meta.get(AS_JSON))


def _unreadable_settings(ctx: click.Context) -> click.ClickException | None:
    """Returns the error if the settings of the app that Celery's command loaded can't be read.

    Celery reads them when the first is needed, which may be when a command is imported.
    """
    app = getattr(ctx.obj, "app", None)
    if app is None or app.configured:
        return None
    from pgbeat.cli.terminal.target import read_settings

    try:
        read_settings(app, app.main or "app")
    except click.ClickException as error:
        return error
    return None


#: Our words for click's.
_NUMBERS = {
    "is not a valid integer range": "is not a whole number",
    "is not a valid integer": "is not a whole number",
    "is not a valid float range": "is not a number",
}
#: Characters of a line of an error, at most: an argument may be a megabyte long.
_LONGEST = 3000


def _shorten(error: click.ClickException) -> None:
    """Cuts the middle out of lines that are too long."""
    error.message = "\n".join(  # type: ignore[misc,unused-ignore]
        line if len(line) <= _LONGEST else f"{line[:200]} … {line[-200:]}"
        for line in error.message.split("\n")
    )
    for theirs, ours in _NUMBERS.items():
        error.message = error.message.replace(theirs, ours)  # type: ignore[misc,unused-ignore]


def _no_such_option(error: click.NoSuchOption) -> click.UsageError:
    """Returns the error with our suggestion instead of click's."""
    known: list[str] = []
    if error.ctx is not None:
        for param in error.ctx.command.get_params(error.ctx):
            known += [flag for flag in (*param.opts, *param.secondary_opts) if flag[:2] == "--"]
    hint = did_you_mean(error.option_name, known) or "--help lists the options"
    return click.UsageError(f"there is no option {error.option_name}; {hint}", error.ctx)


def _misplaced(ctx: click.Context, error: click.NoSuchOption) -> str | None:
    """Returns an error for a general option that was given after the command's name."""
    command = error.ctx.command_path.removeprefix(ctx.command_path).strip() if error.ctx else ""
    for options, owner in ((("-A", "--app", "--workdir"), ctx.find_root()), (("--url",), ctx)):
        if error.option_name in options:
            between = ctx.command_path.removeprefix(owner.command_path)
            right = f"{owner.command_path} {error.option_name} …{between} {command}"
            return f"{error.option_name} goes before the command: {right}"
    return None


_group = partial(
    click.group, cls=Commands, invoke_without_command=True, context_settings={"show_default": True}
)
_url = click.option("--url", envvar="PGBEAT_URL", help="The database; wins over the app's.")


@_group()
@_url
@click.pass_context
def pgbeat(ctx: click.Context, /, url: str | None, **preload: object) -> None:
    """Look at pgbeat's schedules, change them, find out why they did or didn't run."""
    # A program that passes its app may have no command above ours.
    named = True if ctx.parent is None else bool(ctx.parent.params.get("app"))
    _aim(ctx, url, celery=ctx.obj, is_named=named)


def _aim(ctx: click.Context, url: str | None, **how: Any) -> None:
    """Gives the command its target; shows the help if there is no command."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        ctx.exit()

    def target() -> Any:
        from pgbeat.cli.terminal.target import Target

        return Target(url, **how)

    ctx.meta[LATE_TARGET] = target
    if ctx.invoked_subcommand != _QUICK:
        ctx.meta[TARGET] = target()


@_group()
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
    _aim(ctx, url, name=app, workdir=workdir)


def main() -> None:
    """Runs the console script."""
    for name in ("stdout", "stderr"):  # None if it was closed before the start
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    try:
        program(prog_name="pgbeat")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # another one gets no traceback of the exit


# Celery loads its commands, and so this module, before the app and its worker.
if "celery" in sys.modules:
    follow_apps()
