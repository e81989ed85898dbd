"""Shows what the demo sees: as a live table in a terminal, as lines elsewhere."""

import time
from datetime import datetime
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pgbeat.demo.watch import Observer

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


def say(console: Console, line: str | Text) -> None:
    """Prints a line without breaking it."""
    console.print(line, soft_wrap=True, highlight=False, markup=False)


class LiveTable:
    """Shows the last ticks in a table that is redrawn."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()

    def update(self, seen: Observer) -> None:
        """Draws the table with as many ticks as there is room for."""
        foot = self._foot(seen)
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
        for tick in list(seen.ticks.values())[-room:]:
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

    def _foot(self, seen: Observer) -> list[Text]:
        if seen.leader:
            others = "".join(f", {name} is standing by" for name in seen.standbys)
            foot = [Text(f"{seen.leader} leads{others}")]
        else:
            foot = [Text("No beat leads yet", style="dim")]
        if seen.link:
            foot.append(Text.assemble("Console: ", (seen.link, "bold")))
        foot += [Text(f"{name} has ended", style=_STYLES["ended"]) for name in seen.ended]
        for name, reason in seen.disabled.items():
            foot.append(Text(f"{name} is disabled: {reason}", style="red", overflow="ellipsis"))
        seconds = int(time.monotonic() - seen.begun)
        foot.append(Text(f"{seen.summary()} {seconds // 60}:{seconds % 60:02}", style="bold"))
        for line in foot:
            line.no_wrap = True
        return foot


class Lines:
    """Prints a line for each event, for pipes and logs."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.said: set[tuple[object, ...]] = set()
        self.leader = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, seen: Observer) -> None:
        """Prints what is new."""
        if seen.leader and seen.leader != self.leader:
            self.leader = seen.leader
            self._line(None, "leads", seen.leader, "")
        if seen.link:
            self._once(None, "console", seen.link, "")
        for name in seen.ended:
            self._once(None, "ended", name, "")
        for tick in list(seen.ticks.values())[-200:]:
            job = f"job {tick.job}" if tick.job else tick.why
            self._once(tick.decided_at, tick.outcome, tick.schedule, job, tick.id)
            if tick.took is not None:
                ended = tick.decided_at + tick.took
                how = f"{job} {tick.ending.removeprefix(tick.state).strip()}"
                self._once(ended, tick.state, tick.schedule, how, tick.id)
        for name, reason in seen.disabled.items():
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
        say(self.console, line)
