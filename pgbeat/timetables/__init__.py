"""Timetables: pure functions of time that say when a schedule is due.

    Cron, RRule         wall times: days, looked up by month or year, × times of day (`days`)
    Interval, days      wall times: the anchor's, every so many days
    Interval, Once      instants
    Solar               instants, by ephem
    bounded             one of them within a window

`clocks` maps wall times to instants, with the rules of Debian's cron for changes of the clock. A
fixed time in a skipped hour comes once, right after it; in a repeated hour, it comes the first
time. What repeats within the hour or the day goes by elapsed time: in both hours, and not in the
gap.
"""

from pgbeat.timetables.cron_fields import (
    check_cron,
    cron_lines,
    cron_on_one_line,
    parse_cron,
    plain_cron,
)
from pgbeat.timetables.crons import Cron, cron
from pgbeat.timetables.durations import parse_duration, relative, span
from pgbeat.timetables.intervals import Interval
from pgbeat.timetables.rrule_parts import parse_rrule
from pgbeat.timetables.rrules import RRule, rrule
from pgbeat.timetables.solar import EVENTS as SOLAR_EVENTS
from pgbeat.timetables.solar import Solar, parse_solar
from pgbeat.timetables.timetable import NEVER, Once, Timetable, bounded, last_interval
from pgbeat.timetables.zones import TICK, zone

__all__ = [
    "NEVER",
    "SOLAR_EVENTS",
    "TICK",
    "Cron",
    "Interval",
    "Once",
    "RRule",
    "Solar",
    "Timetable",
    "bounded",
    "check_cron",
    "cron",
    "cron_lines",
    "cron_on_one_line",
    "last_interval",
    "parse_cron",
    "parse_duration",
    "parse_rrule",
    "parse_solar",
    "plain_cron",
    "relative",
    "rrule",
    "span",
    "zone",
]
