"""What is known of the queues that a process consumes: hungry, awaited, to be looked at again."""

from pgbeat.broker.transport.watches import Left, Watches


def watching(*queues: int) -> Watches:
    """Queues that are consumed once."""
    watches = Watches()
    assert watches.add(queues) == list(queues)
    return watches


def awaiting(*queues: int) -> Watches:
    """Queues that were empty, and announce what comes."""
    watches = watching(*queues)
    for _ in range(2):
        watches.claiming(queues)
        watches.claimed(queues, is_full=False)
        watches.answered(wanted := watches.wanted(), set(wanted), 0.0)
    assert watches.all_awaited and not watches.hungry
    return watches


def test_a_new_queue_is_hungry_and_not_awaited() -> None:
    watches = watching(1, 2)
    assert watches.hungry == {1, 2}
    assert watches.wanted() == []
    assert 1 in watches and 3 not in watches and len(watches) == 2


def test_a_queue_is_consumed_until_its_last_consumer_ends() -> None:
    watches = awaiting(1, 2)
    assert watches.add([1, 3]) == [3]
    assert watches.remove([1, 4]) == Left([], [])
    assert watches.remove([1, 3]) == Left([1, 3], [1])
    assert 1 not in watches and 2 in watches
    assert watches.hungry == set()


def test_an_empty_queue_is_awaited_and_looked_at_once_more() -> None:
    watches = watching(1)
    watches.claiming([1])
    watches.claimed([1], is_full=False)
    assert watches.wanted() == [1]
    watches.answered([1], {1}, 0.0)
    assert watches.all_awaited
    assert watches.hungry == {1}  # what came before was not announced
    assert watches.wanted() == []


def test_a_queue_that_can_not_be_awaited_is_looked_at_again_ever_later() -> None:
    watches, now, delays = watching(1), 100.0, []
    for _ in range(10):
        watches.claiming([1])
        watches.claimed([1], is_full=False)
        watches.answered(watches.wanted(), set(), now)
        assert watches.wanted() == []
        assert watches.next_at is not None
        delays.append(watches.next_at - now)
        watches.look(now)
        assert watches.hungry == set()
        now = watches.next_at
        watches.look(now)
        assert watches.hungry == {1} and watches.next_at is None
    assert delays == sorted(delays)
    assert delays[0] < 0.01 and 0.2 < delays[-1] < 0.3


def test_a_queue_with_plenty_is_awaited_no_more() -> None:
    watches = awaiting(1, 2)
    watches.make_hungry(1)
    for _ in range(2):
        assert watches.plenty() == []
        watches.claiming([1])
        watches.claimed([1], is_full=True)
    assert watches.plenty() == [1]
    watches.leave([1])
    assert watches.plenty() == [] and watches.wanted() == []
    assert not watches.all_awaited
    watches.claiming([1])
    watches.claimed([1], is_full=False)
    assert watches.wanted() == [1]


def test_what_is_announced_while_a_claim_is_under_way_is_not_missed() -> None:
    watches = awaiting(1)
    watches.make_hungry(1)
    watches.claiming([1])
    assert watches.make_hungry(1)
    watches.claimed([1], is_full=False)
    assert watches.hungry == {1}
    assert not watches.make_hungry(2)


def test_what_comes_for_a_queue_that_is_gone() -> None:
    watches = awaiting(1)
    watches.remove([1])
    watches.claimed([1], is_full=True)
    watches.answered([1], {1}, 0.0)
    watches.leave([1])
    assert watches.hungry == set() and watches.wanted() == [] and len(watches) == 0
