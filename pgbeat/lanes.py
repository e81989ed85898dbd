"""Functions on lanes for programs and tasks: `pgbeat.lanes.set_rate`."""

from pgbeat.jobs.verbs.lane_rates import set_rate as set_rate

__all__ = ["set_rate"]
