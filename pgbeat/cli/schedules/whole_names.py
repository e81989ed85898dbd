"""`pgbeat schedules`: the commands on schedules, which have short forms, by their whole names."""

import click

from pgbeat.cli import SCHEDULES, LazyGroup, Noun


class _Schedules(LazyGroup, Noun):
    table = SCHEDULES


@click.group("schedules", cls=_Schedules)
def schedules_command() -> None:
    """Look at schedules, change them, trigger them.

    All its commands have short forms: `pgbeat pause NAME` is `pgbeat schedules pause NAME`.
    """
