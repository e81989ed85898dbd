"""`pgbeat demo`: an embedded Postgres, one worker and two beats at work, seen tick by tick."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from pgbeat import db, embedded, leases, migrate
from pgbeat.errors import PgbeatError

_LOCK_KEY = 1050
#: Seconds between two looks at the database.
_PAUSE = 0.25
#: Seconds that the processes may take to start before the time of a limited demo runs anyway.
_START_UP = 60.0
#: Seconds that a process may take to end when it is asked to.
_PATIENCE = 10.0
#: The database is made anew each time: nothing in it has to survive a power cut.
_SETTINGS = {"timezone": "UTC", "fsync": "off"}
_STYLES = {
    "launched": "green",
    "skipped": "yellow",
    "failed": "red",
    "completed": "green",
    "running": "cyan",
    "disabled": "bold red",
    "leads": "bold",
    "ended": "bold red",
}


def run(
    seconds: float | None = None, folder: Path | None = None, console: Console | None = None
) -> int:
    """Runs the demo for so many seconds, once a beat leads, or until interrupted; the exit status.

    With `seconds`, that is 0 only if launched, skipped and failed ticks and a completed job were
    seen. Nothing that it started outlives it. Raises `PgbeatError` where something doesn't start,
    or ends by itself.
    """
    console = console or Console()
    show: Show = LiveTable(console) if console.is_terminal else Lines(console)
    watch = Watch()
    try:
        with _interruptible(), _everything(folder, console) as (connection, children), show:
            while not watch.is_over(seconds):
                watch.look(connection, children)
                show.update(watch)
                time.sleep(_PAUSE)
    except KeyboardInterrupt:
        pass
    _say(console, watch.summary())
    if seconds is None:
        return 0
    missing = watch.missing()
    if missing:
        _say(console, f"Not seen: {', '.join(missing)}.")
    return 1 if missing else 0


@contextmanager
def _everything(folder: Path | None, console: Console) -> Iterator[tuple[Connection, "Children"]]:
    """The server and all processes, running inside the block."""
    folder = (folder or embedded.default_folder()).absolute()
    _say(console, f"Starting Postgres in {folder}")
    with embedded.server(folder, _SETTINGS) as server:
        url = server.create_database("pgbeat", fresh=True)
        migrate.upgrade(url)
        dsn = server.dsn("pgbeat")
        with Children(folder, _environment(dsn, folder)) as children:
            children.run("schedules", "tasks.schedules", "--demo")
            prices = children.start("prices", "tasks.price_server", "--port=0", "--fail-every=4")
            children.environment["PGBEAT_PRICES_URL"] = prices
            celery = ("celery", "-A", "tasks")
            children.start("worker", *celery, "worker", "--concurrency=2", "--loglevel=info")
            for number in (1, 2):
                beat = ("beat", "-S", "pgbeat.Scheduler", "--loglevel=info")
                children.start(f"beat {number}", *celery, *beat)
            psql = "psql" if shutil.which("psql") else str(server.programs / "psql")
            _say(console, f"  look inside: {psql} '{dsn}'")
            _say(console, f"  logs:        {folder}/*.log")
            _say(console, "One worker and two beats are starting; Ctrl-C ends them.")
            with db.engine(url, "pgbeat demo").connect() as connection:
                try:
                    yield connection.execution_options(isolation_level="AUTOCOMMIT"), children
                finally:
                    _say(console, "Stopping; Ctrl-C again doesn't wait for the worker.")


def _environment(dsn: str, folder: Path) -> dict[str, str]:
    """The children's: none of the user's settings of libpq, pgbeat and Celery, and the example."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "CELERY_"))}
    path = [str(_example()), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {
        "PGBEAT_URL": dsn,
        "PGBEAT_LOCK_KEY": str(_LOCK_KEY),
        "PGBEAT_BACKUPS": str(folder / "backups"),
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONUNBUFFERED": "1",
    }


def _example() -> Path:
    """The folder with the example's package `tasks`: in the wheel, or in a checkout."""
    here = Path(__file__).resolve().parent
    for root in (here / "_example", here.parent):
        if (root / "tasks" / "price_server.py").exists():
            return root
    raise PgbeatError("the example app `tasks` is missing from this installation")


@contextmanager
def _interruptible() -> Iterator[None]:
    """TERM and HUP end the demo as Ctrl-C does; what the caller made it ignore stays ignored."""

    def interrupt(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = {}
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            before[signum] = signal.signal(signum, interrupt)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _say(console: Console, line: str | Text) -> None:
    console.print(line, soft_wrap=True, highlight=False, markup=False)


class Children:
    """The processes of the demo, each with its log in the folder; stopped when the block ends."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self.running: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Ends them, the price server last: TERM, and KILL for those that take too long.

        An interruption meanwhile kills the rest at once.
        """
        first = [process for name, process in self.running.items() if name != "prices"]
        try:
            for group in (first, [*self.running.values()]):
                for process in group:
                    process.terminate()
                deadline = time.monotonic() + _PATIENCE
                for process in group:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for process in self.running.values():
                # A pool's processes are of the worker's group.
                if process.poll() != 0:
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def log(self, name: str) -> Path:
        """A process's log."""
        return self.folder / f"{name.replace(' ', '-')}.log"

    def start(self, name: str, module: str, *arguments: str) -> str:
        """Starts a Python module; for the price server, the first line that it prints."""
        process = self._popen(name, module, *arguments, pipe=name == "prices")
        self.running[name] = process
        if process.stdout is None:
            return ""
        with process.stdout as output:
            line = output.readline().strip()
        if not line:
            raise self._broken(name)
        return line

    def run(self, name: str, module: str, *arguments: str) -> None:
        """Runs a Python module to its end. Raises `PgbeatError` if that is not a good one."""
        process = self._popen(name, module, *arguments)
        try:
            if process.wait() != 0:
                raise self._broken(name)
        finally:
            process.kill()
            process.wait()

    def check(self) -> list[str]:
        """Names of those that have ended. Raises `PgbeatError` where the demo can't go on."""
        ended = [name for name, process in self.running.items() if process.poll() is not None]
        if "worker" in ended or "prices" in ended or {"beat 1", "beat 2"} <= set(ended):
            raise self._broken(ended[0])
        return ended

    def _popen(
        self, name: str, module: str, *arguments: str, pipe: bool = False
    ) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", module, *arguments]
        with self.log(name).open("wb") as log:
            return subprocess.Popen(  # noqa: S603 - our own command
                embedded.child_command(command),
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipe else log,
                stderr=log,
                text=True,
                # A Ctrl-C in the terminal is for the demo, which ends its children in order.
                start_new_session=True,
            )

    def _broken(self, name: str) -> PgbeatError:
        log = self.log(name)
        last = "\n".join(log.read_text(errors="replace").strip().splitlines()[-5:])
        return PgbeatError(f"{name} has ended; the end of {log}:\n{last}")


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick, and what became of its job so far."""

    id: int
    decided_at: datetime
    schedule: str
    outcome: str
    #: Why it was skipped, or the error that it failed with.
    why: str
    job: str
    #: The job's state; empty without a job.
    state: str
    error: str
    #: From the decision to the job's end.
    took: timedelta | None

    @property
    def ending(self) -> str:
        """How the job ended, or what it is doing."""
        after = "" if self.took is None else f" after {self.took.total_seconds():.1f} s"
        return f"{self.state}{after}" + (f": {_unqualified(self.error)}" if self.error else "")


# The job's own state where the worker keeps it, else what Celery's result backend says.
_TICKS = text(
    """
    SELECT t.id, t.decided_at, t.schedule, t.outcome,
           split_part(coalesce(t.reason, t.error, ''), E'\\n', 1),
           coalesce(left(t.job_id::text, 8), ''),
           CASE WHEN t.job_id IS NULL THEN ''
                WHEN j.state <> 'pending' THEN j.state
                WHEN m.status = 'SUCCESS' THEN 'completed'
                WHEN m.status = 'FAILURE' THEN 'failed'
                WHEN m.status = 'STARTED' THEN 'running'
                ELSE 'pending' END,
           coalesce(j.error, (regexp_match(m.traceback, '([^\\n]*)\\s*$'))[1], ''),
           coalesce(j.finished_at, m.date_done) - t.decided_at
      FROM pgbeat.ticks t
      LEFT JOIN pgbeat.jobs j ON j.id = t.job_id
      LEFT JOIN celery_taskmeta m
             ON m.task_id = t.job_id::text AND m.status IN ('SUCCESS', 'FAILURE', 'STARTED')
     ORDER BY t.id DESC LIMIT 200
    """
)
_DISABLED = text("SELECT name, disabled_reason FROM pgbeat.schedules WHERE NOT enabled")


def _unqualified(error: str) -> str:
    """`package.module.SomeError: why` as `SomeError: why`."""
    return re.sub(r"^(?:\w+\.)+(?=\w+:)", "", error)


class Watch:
    """What was seen so far."""

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.led_since: float | None = None
        self.ticks: dict[int, Tick] = {}
        self.leader = ""
        self.standbys: list[str] = []
        self.disabled: dict[str, str] = {}
        self.ended: list[str] = []

    def look(self, connection: Connection, children: Children) -> None:
        """Reads what is new. Raises `PgbeatError` where the demo can't go on."""
        self.ended = children.check()
        try:
            found = [Tick(*row) for row in connection.execute(_TICKS)]
            holders = leases.holders(connection, _LOCK_KEY)
            self.disabled = dict(connection.execute(_DISABLED).tuples().all())
        except DBAPIError as error:
            raise PgbeatError(f"Postgres has ended: {error.orig}") from None
        self.ticks.update((tick.id, tick) for tick in reversed(found))
        names = {str(child.pid): name for name, child in children.running.items()}
        beats = []
        for holder in holders:
            pid = holder.application_name.rpartition(":")[2]
            beats.append((holder.leads, f"{names.get(pid, 'a beat')} (process {pid})"))
        self.leader = next((name for leads, name in beats if leads), "")
        self.standbys = [name for leads, name in beats if not leads]
        if self.leader and self.led_since is None:
            self.led_since = time.monotonic()

    def is_over(self, seconds: float | None) -> bool:
        """Whether that long has passed since a beat first led (or far too long without one)."""
        if seconds is None:
            return False
        begun = self.begun + _START_UP if self.led_since is None else self.led_since
        return time.monotonic() >= begun + seconds

    def summary(self) -> str:
        """The figures, in a line."""
        outcomes = Counter(tick.outcome for tick in self.ticks.values())
        states = Counter(tick.state for tick in self.ticks.values() if tick.state)
        ticks = ", ".join(f"{outcomes[name]} {name}" for name in ("launched", "skipped", "failed"))
        jobs = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        return f"Ticks: {ticks}. Jobs: {jobs or 'none'}."

    def missing(self) -> list[str]:
        """What a full demonstration should have shown and this one didn't."""
        seen = {tick.outcome for tick in self.ticks.values()}
        missing = [
            f"a {name} tick" for name in ("launched", "skipped", "failed") if name not in seen
        ]
        if all(tick.state != "completed" for tick in self.ticks.values()):
            missing.append("a completed job")
        return missing


class Show(Protocol):
    """A way to show what is seen."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def update(self, watch: Watch) -> None:
        """Shows what is new."""


class LiveTable:
    """The last ticks in a table that is drawn anew."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()

    def update(self, watch: Watch) -> None:
        """Draws the table with as many ticks as there is room for."""
        foot = self._foot(watch)
        room = max(4, min(24, self.console.height - len(foot) - 7))
        wide = self.console.width >= 110
        table = Table(expand=True, pad_edge=False, box=None, header_style="bold")
        for title, width in (("time", 8), ("schedule", 21), ("outcome", 8)):
            table.add_column(title, width=width, no_wrap=True)
        more: list[tuple[str, int | None]] = [("reason, or job and how it ended", 1)]
        if wide:
            more = [("reason or error", 3), ("job", None), ("how it ended", 2)]
        for title, ratio in more:
            table.add_column(title, width=None if ratio else 8, ratio=ratio, no_wrap=True)
        for tick in list(watch.ticks.values())[-room:]:
            ending = Text(tick.ending, style=_STYLES.get(tick.state, "dim"))
            why = Text(tick.why, style="" if tick.outcome == "failed" else "dim")
            cells: list[str | Text] = [why, tick.job, ending]
            if not wide:
                cells = [Text.assemble(f"{tick.job} ", ending) if tick.job else why]
            table.add_row(
                f"{tick.decided_at.astimezone():%H:%M:%S}",
                tick.schedule,
                Text(tick.outcome, style=_STYLES[tick.outcome]),
                *cells,
            )
        self.live.update(Group("", table, "", *foot), refresh=True)

    def _foot(self, watch: Watch) -> list[Text]:
        if watch.leader:
            others = "".join(f", {name} stands by" for name in watch.standbys)
            foot = [Text(f"{watch.leader} leads{others}")]
        else:
            foot = [Text("No beat leads yet", style="dim")]
        foot += [Text(f"{name} has ended", style=_STYLES["ended"]) for name in watch.ended]
        for name, reason in watch.disabled.items():
            foot.append(Text(f"{name} is disabled: {reason}", style="red", overflow="ellipsis"))
        seconds = int(time.monotonic() - watch.begun)
        foot.append(Text(f"{watch.summary()} {seconds // 60}:{seconds % 60:02}", style="bold"))
        for line in foot:
            line.no_wrap = True
        return foot


class Lines:
    """A line for each thing that happens: for pipes and logs."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.said: set[tuple[object, ...]] = set()
        self.leader = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, watch: Watch) -> None:
        """Prints what is new."""
        if watch.leader and watch.leader != self.leader:
            self.leader = watch.leader
            self._line(None, "leads", watch.leader, "")
        for name in watch.ended:
            self._once(None, "ended", name, "")
        for tick in list(watch.ticks.values())[-200:]:
            job = f"job {tick.job}" if tick.job else tick.why
            self._once(tick.decided_at, tick.outcome, tick.schedule, job, tick.id)
            if tick.took is not None:
                ended = tick.decided_at + tick.took
                how = f"{job} {tick.ending.removeprefix(tick.state).strip()}"
                self._once(ended, tick.state, tick.schedule, how, tick.id)
        for name, reason in watch.disabled.items():
            self._once(None, "disabled", name, reason)

    def _once(self, moment: datetime | None, what: str, name: str, more: str, key: int = 0) -> None:
        if (what, name, key) not in self.said:
            self.said.add((what, name, key))
            self._line(moment, what, name, more)

    def _line(self, moment: datetime | None, what: str, name: str, more: str) -> None:
        clock = f"{moment.astimezone():%H:%M:%S}" if moment else time.strftime("%H:%M:%S")
        line = Text.assemble(
            f"{clock} ", (f"{what:<10}", _STYLES.get(what, "")), f"{name:<22} {more}".rstrip()
        )
        _say(self.console, line)
