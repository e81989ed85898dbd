"""Submits jobs and awaits results in asyncio: `from pgbeat import aio`."""

from pgbeat.integrations.aio import result, submit, submit_group, submit_many

__all__ = ["result", "submit", "submit_group", "submit_many"]
