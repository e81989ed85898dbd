"""`pgbeat dev` and `pgbeat all`: worker, beat and console of the app in one terminal."""

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from sqlalchemy.exc import DBAPIError

from pgbeat.broker import installation
from pgbeat.cli.terminal.failures import BadInput, unreachable
from pgbeat.cli.terminal.options import FLAG, adding, option
from pgbeat.cli.terminal.target import Target, pass_target
from pgbeat.config import Settings
from pgbeat.dev import database, processes, sources
from pgbeat.dev.lines import Log
from pgbeat.dev.session import DevSession

if TYPE_CHECKING:
    from celery import Celery

#: The console's port unless it is given; another one if it is taken.
_PORT = 8080
_shared: Callable[[Any], Any] = adding(
    option("--pool", "TEXT", "The worker's pool; Celery's default without it."),
    click.option("-c", "--concurrency", type=click.IntRange(1), help="Tasks that run at once."),
    click.option("-Q", "--queues", metavar="TEXT", help="Queues that the worker consumes."),
    option("--loglevel", "TEXT", "The lowest level that worker and beat log.", default="info"),
    option("--port", click.IntRange(1, 65535), f"The console's port; {_PORT} or any other."),
    click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        help="The embedded server's folder.",
    ),
    option("--fresh", FLAG, "Empty the embedded server's database first."),
    option("--open", FLAG, "Open the console in the browser.", "opens"),
    pass_target,
)


@click.command("dev")
@_shared
def dev_command(target: Target, **options: Any) -> None:
    """Run all that an app needs in one terminal, and follow its source.

    That is a worker, a beat and the console. The database is the app's. If the app names none, or
    none answers on this machine, an embedded Postgres is started, and takes the place of the app's
    broker and result backend, too. Its data stay where it says. The schema is brought to the newest
    version.

    When a Python file below this folder changes, a new worker and a new beat load the app, and the
    old ones end: the worker when its tasks have. If the app can't be loaded, the old ones go on.
    """
    try:
        changes = sources.watch([Path.cwd()])
    except ImportError:
        raise BadInput(
            "watching the source needs one more package: pip install 'pgbeat[dev]'; `pgbeat all` "
            "runs the same without it"
        ) from None
    sys.exit(_run(target, changes, **options))


@click.command("all")
@_shared
def all_command(target: Target, **options: Any) -> None:
    """Run the app's worker, a beat and the console in one terminal, for a small server.

    It is `pgbeat dev` without a look at the source, and ends when one of them does, so that what
    runs it can start it again.
    """
    sys.exit(_run(target, None, **options))


def _run(
    target: Target,
    changes: sources.Watch | None,
    *,
    port: int | None,
    data: Path | None,
    fresh: bool,
    opens: bool,
    **worker: Any,
) -> int:
    app = target.require_app("worker and beat need the app")
    name = _path(app)
    log = Log(has_colours=sys.stdout.isatty() and not target.no_color)
    folder = (data or database.default_folder()).absolute()
    with processes.interruptible() as interruption:
        try:
            with database.opened(
                database.configured(app.conf), folder, log, fresh=fresh
            ) as variables:
                os.environ.update(variables)
                done = installation.migrate(Settings.load(app.conf), target.author, app, {})
                if done.before != done.after:
                    log("postgres", f"the schema is at {done.after}")
                commands = _commands(log, port, opens=opens, **worker)
                environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
                session = DevSession(name, commands, environment, log)
                return session.run(changes, interruption)
        except DBAPIError as error:
            raise BadInput(str(unreachable(error, target))) from None
        except KeyboardInterrupt:
            return 0


def _commands(
    log: Log,
    port: int | None,
    *,
    pool: str | None,
    concurrency: int | None,
    queues: str | None,
    loglevel: str,
    opens: bool,
) -> Callable[[int], dict[str, list[str]]]:
    """Returns what returns the arguments of each process, for `DevSession`."""
    level = f"--loglevel={loglevel}"
    worker = ["-q", "worker", level, *_QUICKER]
    for flag, value in (("pool", pool), ("concurrency", concurrency), ("queues", queues)):
        if value is not None:
            worker.append(f"--{flag}={value}")
    has_console = find_spec("fastapi") is not None and find_spec("uvicorn") is not None
    if has_console:
        port = processes.free_port(port or _PORT, or_other=port is None)
    else:
        log("dev", "no console without its packages: pip install 'pgbeat[web]'")

    def commands(generation: int) -> dict[str, list[str]]:
        named = [*worker, f"--hostname=dev-{os.getpid()}-{generation}@%h"]
        every = {"worker": named, "beat": ["-q", "beat", "-S", "pgbeat.Scheduler", level]}
        if has_console:
            link = ["--link", *(["--open"] if opens else [])] if generation == 1 else ["--no-link"]
            every["web"] = ["pgbeat", "web", f"--port={port}", *link]
        return every

    return commands


#: A worker that is alone asks no others what they know, and so starts a second sooner.
_QUICKER = ("--without-mingle", "--without-gossip")


def _path(app: "Celery") -> str:
    """Returns by which name other processes find the app: `module:attribute`."""
    for module in list(sys.modules.values()):
        if module.__name__.partition(".")[0] in ("celery", "pgbeat", "__main__"):
            continue
        for attribute, value in list(vars(module).items()):
            if value is app:
                return f"{module.__name__}:{attribute}"
    raise BadInput(
        "worker and beat are processes of their own, and need the app as a variable of a module"
    )
