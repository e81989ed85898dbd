"""Submits jobs, emits events and awaits results in asyncio: `from pgbeat import aio`."""

from pgbeat.integrations.aio import emit, result, submit, submit_group, submit_many

__all__ = ["emit", "result", "submit", "submit_group", "submit_many"]
