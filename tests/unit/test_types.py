"""The types of public names, as users of mypy see them: mypy checks this file in strict mode."""

from typing import assert_type

import pgbeat
from pgbeat import aio
from pgbeat.jobs.groups.model import Group
from pgbeat.jobs.lanes.model import Lane
from pgbeat.jobs.rows.model import Job


async def _use() -> None:
    assert_type(pgbeat.lanes.set_rate("api", "10/minute", for_="10 minutes"), Lane)
    assert_type(pgbeat.submit("shop.resize", 17, lane="gpu"), Job)
    assert_type(pgbeat.submit_many(["shop.resize"]), list[str])
    assert_type(pgbeat.submit_group(["shop.resize"]).group, Group)
    assert_type(pgbeat.is_cancelled(), bool)
    assert_type(await aio.submit("shop.resize"), Job)
    pgbeat.sumbit("shop.resize")  # type: ignore[attr-defined]


def test_every_public_name_is_there() -> None:
    assert callable(_use)
    assert all(getattr(pgbeat, name) is not None for name in pgbeat.__all__)
    assert callable(pgbeat.lanes.set_rate)
