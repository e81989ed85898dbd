"""Helps a team's own tests.

Offers a scheduler on a clock that the test sets (`Scheduler`), its fixtures
(`pgbeat.testing.fixtures`), and Postgres for pytest-celery (`pgbeat.testing.pytest_celery`).
"""

from pgbeat.testing.scheduler import Scheduler

__all__ = ["Scheduler"]
