"""What programs and tasks may do with lanes: `pgbeat.lanes.set_rate`."""

from pgbeat.jobs.verbs.lane_rates import set_rate as set_rate

__all__ = ["set_rate"]
