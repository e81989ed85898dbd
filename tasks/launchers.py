"""Launchers of the example: check often, work rarely."""

from collections.abc import Mapping
from math import floor
from typing import Any

from sqlalchemy import func, select

from pgbeat import Context, Launcher, Skip, launcher
from tasks.store import changes, types


@launcher
class CategoryRefreshLauncher(Launcher):
    """Launches if there are `llm_generated` types to put into categories."""

    task = "tasks.vocabulary.refresh_categories"

    def check_conditions(self, ctx: Context) -> bool | Skip:
        """Returns whether to launch, or why not."""
        waiting = ctx.connection.scalar(
            select(func.count()).select_from(types).where(types.c.source == "llm_generated")
        )
        return True if waiting else Skip("no llm_generated types")

    def prepare_job_data(self, ctx: Context) -> Mapping[str, Any]:
        """Returns the task's arguments."""
        return {}


@launcher
class VocabConsolidationLauncher(Launcher):
    """Launches when many types are inactive, and then until few are (hysteresis).

    It starts when more than 50 types are active and the inactive ones are more than 20 % of them,
    and continues at later ticks until they are below 10 %. The cursor says whether it has started.
    """

    task = "tasks.vocabulary.consolidate"
    enough = 50
    #: Percent of the active types.
    begin_above = 20
    end_below = 10

    def check_conditions(self, ctx: Context) -> bool | Skip:
        """Returns whether to launch, or why not."""
        active, inactive = ctx.connection.execute(
            select(
                func.count().filter(types.c.active), func.count().filter(~types.c.active)
            ).select_from(types)
        ).one()
        ratio = 100 * inactive / active if active else 100.0 * (inactive > 0)
        figure = f"inactive ratio {floor(ratio)}%"
        if (ctx.cursor or {}).get("consolidating"):
            if ratio >= self.end_below:
                return True
            ctx.cursor = {"consolidating": False}
            return Skip(f"{figure} < {self.end_below}%, consolidated")
        if active <= self.enough:
            return Skip(f"{active} active types, consolidates above {self.enough}")
        if ratio > self.begin_above:
            ctx.cursor = {"consolidating": True}
            return True
        if ratio < self.end_below:
            return Skip(f"{figure} < {self.end_below}%")
        return Skip(f"{figure}, consolidates above {self.begin_above}%")

    def prepare_job_data(self, ctx: Context) -> Mapping[str, Any]:
        """Returns the task's arguments."""
        return ctx.schedule.kwargs


@launcher
class EpistemicRemeasurementLauncher(Launcher):
    """Launches if the vocabulary has changed often enough since the last measurement.

    The cursor keeps the last change that was counted.
    """

    task = "tasks.vocabulary.remeasure"
    threshold = 20

    def check_conditions(self, ctx: Context) -> bool | Skip:
        """Returns whether to launch, or why not."""
        self.since = int((ctx.cursor or {}).get("change", 0))
        counted, self.until = ctx.connection.execute(
            select(func.count(), func.max(changes.c.id)).where(changes.c.id > self.since)
        ).one()
        if counted < self.threshold:
            return Skip(f"{counted} vocabulary changes < {self.threshold}")
        return True

    def prepare_job_data(self, ctx: Context) -> Mapping[str, Any]:
        """Returns the task's arguments."""
        ctx.cursor = {"change": self.until}
        return {"since": self.since, "until": self.until}
