"""Which statement a consumer sends next."""

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from pgbeat.broker import message_ends
from pgbeat.broker.transport.consuming import claim_sql
from pgbeat.broker.transport.consuming.claims import ClaimedMessage, Request
from pgbeat.broker.transport.consuming.planner import LEAVE, Planner


class Channel:
    """A channel that consumes with acknowledgements, and has room for some messages."""

    def __init__(self, *queues: int, free: int = 10) -> None:
        self.acked: Mapping[int, int] = Counter(queues)
        self.taken: Mapping[int, int] = {}
        self.free, self.is_busy, self.polls_credit = free, False, False
        self.received: list[ClaimedMessage] = []

    def credit(self) -> int:
        return self.free

    def has_plenty(self, credit: int) -> bool:
        return self.is_busy

    def room(self) -> int:
        return self.free

    def receive(self, found: list[ClaimedMessage], *, acked: bool) -> None:
        self.received += found


def taker(*queues: int) -> Channel:
    """A channel that consumes without acknowledgements, as a worker's remote control does."""
    channel = Channel(free=1)
    channel.taken = Counter(queues)
    return channel


class Result:
    """An answer of the server's: rows of text."""

    def __init__(self, *rows: tuple[bytes | None, ...]) -> None:
        self.rows, self.ntuples = rows, len(rows)

    def get_value(self, row: int, column: int) -> bytes | None:
        return self.rows[row][column]


def message(id: int, queue: int = 1) -> tuple[bytes | None, ...]:
    return b"%d" % id, b"%d" % queue, b"0", b"1", b"f", b"{}", None


#: The last row of a claim of a consumer that is alive.
ALIVE = (None, None, None, b"1", None, b"0.001")


def planner(*channels: Channel, is_leased: bool = False) -> Planner:
    made = Planner(7, batch_size=100, is_leased=is_leased)
    for channel in channels:
        made.intakes.append(channel)
        made.states.add([*channel.acked, *channel.taken])
    return made


def answer(request: Request | None, *rows: tuple[bytes | None, ...]) -> None:
    result: Any = Result(*rows)
    assert request is not None
    request.done(result)


def drained(channel: Channel) -> Planner:
    """A planner whose queues were found empty and are awaited."""
    plan = planner(channel)
    answer(plan.next(0.0), ALIVE)
    answer(plan.next(0.0), (b"1",))
    answer(plan.next(0.0), ALIVE)
    assert plan.next(0.0) is None
    return plan


def test_a_claim_asks_for_what_the_channel_has_room_for() -> None:
    channel = Channel(1, free=3)
    request = planner(channel).next(0.0)
    assert request is not None and request.statement is claim_sql.CLAIM
    assert request.parameters[:3] == (b"{1}", b"3", b"7")
    answer(request, message(5), message(4), ALIVE)
    assert [found.id for found in channel.received] == [4, 5]


def test_a_queue_whose_claims_are_full_is_not_awaited_any_more() -> None:
    channel = Channel(1, free=1)
    plan = drained(channel)
    plan.states.mark_claimable(1)
    for id in (1, 2):
        answer(plan.next(float(id)), message(id), ALIVE)
    channel.free = 0
    request = plan.next(3.0)
    assert request is not None and request.statement is LEAVE


def test_a_consumer_with_a_lease_awaits_nothing() -> None:
    plan = planner(Channel(1), is_leased=True)
    request = plan.next(0.0)
    assert request is not None and request.statement is claim_sql.CLAIM_LEASED
    answer(request, ALIVE)
    assert plan.next(0.0) is None


def test_channels_take_turns() -> None:
    one, two = Channel(1, free=1), Channel(1, free=1)
    plan = planner(one, two)
    for id in (1, 2, 3, 4):
        answer(plan.next(float(id)), message(id), ALIVE)
    assert len(one.received) == len(two.received) == 2


@pytest.mark.parametrize("is_last", [False, True])
def test_commands_come_before_tasks_that_are_announced_with_them(is_last: bool) -> None:
    """Whichever channel's turn it is."""
    channels = [taker(2), Channel(1)]
    plan = planner(*(reversed(channels) if is_last else channels))
    for _ in range(3):
        plan.states.mark_all_claimable()
        asked = [plan.next(0.0), plan.next(0.0)]
        assert [request and request.parameters[0] for request in asked] == [b"{2}", b"{1}"]
        plan.next(0.0)  # nothing is left to claim


def test_a_flood_of_commands_does_not_hold_up_tasks_of_any_channel() -> None:
    plan = planner(Channel(1), taker(2), Channel(3))
    asked = []
    for _ in range(8):
        plan.states.mark_all_claimable()
        request = plan.next(0.0)
        assert request is not None
        asked.append(request.parameters[0])
    assert asked == [b"{2}", b"{1}", b"{2}", b"{3}"] * 2


def test_all_channels_claim_from_the_start_when_it_is_time() -> None:
    """And then no more, however soon that time would come again for one of them."""
    plan = planner(Channel(1), Channel(2))
    costly = (*ALIVE[:-1], b"0.5")
    answer(plan.next(0.0), message(5), costly)
    request = plan.next(0.0)
    answer(request, message(6, queue=2), ALIVE)
    assert request is not None and request.statement is claim_sql.CLAIM_ON
    assert plan.claims.deep_at == pytest.approx(time.monotonic() + 10, abs=5)
    plan.claims.look_everywhere(time.monotonic() + 20)
    for at in (1.0, 2.0):
        request = plan.next(at)
        answer(request, costly)
        assert request is not None and request.statement is claim_sql.CLAIM
        assert plan.claims.deep_at is None
    plan.states.mark_claimable(1)
    answer(plan.next(3.0), ALIVE)
    assert plan.claims.deep_at == pytest.approx(time.monotonic() + 30, abs=5)  # both had a cost


def test_acknowledgements_travel_with_a_claim_or_alone() -> None:
    channel = Channel(1)
    plan = planner(channel)
    plan.acks.add(9, starts_job=False)
    request = plan.next(0.0)
    assert request is not None and request.parameters[3] == b"{9}"
    answer(request, ALIVE)
    plan.acks.add(10, starts_job=False)
    request = plan.next(0.0)
    assert request is not None and request.statement is message_ends.ACK


def test_a_busy_channel_waits_for_more_credit() -> None:
    channel = Channel(1)
    plan = planner(channel)
    answer(plan.next(1.0), *(message(id) for id in range(1, 11)), ALIVE)
    channel.is_busy, channel.free = True, 1
    assert plan.next(1.001) is None
    assert min(plan.next_times(1.001)) == pytest.approx(1.003)
    assert plan.next(1.004) is not None


def test_a_channel_without_credit_is_asked_again_soon() -> None:
    channel = Channel(1, free=0)
    plan = planner(channel)
    assert plan.next(1.0) is None and plan.next_times(1.0) == []
    channel.polls_credit = True
    assert plan.next(1.0) is None
    assert plan.next_times(1.0) == [pytest.approx(1.02)]
