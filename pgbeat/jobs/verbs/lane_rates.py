"""Provides `pgbeat.lanes.set_rate`, by which programs and tasks change the rate of a lane."""

from datetime import timedelta

from celery import Celery, current_app

from pgbeat.access import actors
from pgbeat.broker.publishing.transaction import Opened
from pgbeat.config import settings_of
from pgbeat.jobs.lanes.model import Lane
from pgbeat.jobs.verbs import lane_control
from pgbeat.jobs.writing import submissions


def set_rate(
    name: str,
    rate: str | None,
    *,
    for_: str | float | timedelta | None = None,
    connection: Opened | None = None,
    app: Celery | None = None,
) -> Lane:
    """Sets the rate of a lane, at once and for the jobs that wait, too. Returns the lane.

        pgbeat.lanes.set_rate("search-api", "10/minute", for_="10 minutes")

    `rate` is written as on the command line; `None` removes it. With `for_` (text, seconds or a
    `timedelta`) the old rate returns after that time by itself. What the rate counts (its key and
    unit) stays. The change commits by itself, also in a task or a framework's transaction, unless
    `connection`, an open SQLAlchemy session or connection on pgbeat's database, is given.

    Raises `NotFound`, and `InvalidJob` for an invalid rate.
    """
    app = app or current_app._get_current_object()
    changes = lane_control.rate_changes(rate, for_)
    with (
        submissions.opened_unit(
            app, settings_of(app), actors.user(origin="program"), connection, joins=False
        ) as unit,
        unit.transaction(),
    ):
        return lane_control.save(unit, name, changes, only="there").lane
