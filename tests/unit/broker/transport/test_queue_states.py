"""The states of the queues that a process consumes: claimable, awaited, to be retried."""

from pgbeat.broker.transport.consuming.queue_states import QueueStates, Removed


def consuming(*queues: int) -> QueueStates:
    """Queues that are consumed once."""
    states = QueueStates()
    assert states.add(queues) == list(queues)
    return states


def awaiting(*queues: int) -> QueueStates:
    """Queues that were found empty and are awaited."""
    states = consuming(*queues)
    for _ in range(2):
        states.claim_sent(queues)
        states.claim_done(queues, is_full=False)
        states.awaited(asked := states.to_await(), set(asked), 0.0)
    assert states.all_awaited and not states.claimable
    return states


def test_a_new_queue_is_claimable_and_not_awaited() -> None:
    states = consuming(1, 2)
    assert states.claimable == {1, 2}
    assert states.to_await() == []
    assert 1 in states and 3 not in states and len(states) == 2


def test_a_queue_is_consumed_until_its_last_consumer_ends() -> None:
    states = awaiting(1, 2)
    assert states.add([1, 3]) == [3]
    assert states.remove([1, 4]) == Removed([], [])
    assert states.remove([1, 3]) == Removed([1, 3], [1])
    assert 1 not in states and 2 in states
    assert states.claimable == set()


def test_an_empty_queue_is_awaited_and_claimed_from_once_more() -> None:
    states = consuming(1)
    states.claim_sent([1])
    states.claim_done([1], is_full=False)
    assert states.to_await() == [1]
    states.awaited([1], {1}, 0.0)
    assert states.all_awaited
    assert states.claimable == {1}  # what came before was not announced
    assert states.to_await() == []


def test_a_queue_that_can_not_be_awaited_is_retried_ever_later() -> None:
    states, now, delays = consuming(1), 100.0, []
    for _ in range(10):
        states.claim_sent([1])
        states.claim_done([1], is_full=False)
        states.awaited(states.to_await(), set(), now)
        assert states.to_await() == []
        assert states.retry_at is not None
        delays.append(states.retry_at - now)
        states.advance(now)
        assert states.claimable == set()
        now = states.retry_at
        states.advance(now)
        assert states.claimable == {1} and states.retry_at is None
    assert delays == sorted(delays)
    assert delays[0] < 0.01 and 0.2 < delays[-1] < 0.3


def test_a_queue_whose_claims_are_full_is_awaited_no_more() -> None:
    states = awaiting(1, 2)
    states.mark_claimable(1)
    for _ in range(2):
        assert states.to_leave() == []
        states.claim_sent([1])
        states.claim_done([1], is_full=True)
    assert states.to_leave() == [1]
    states.left([1])
    assert states.to_leave() == [] and states.to_await() == []
    assert not states.all_awaited
    states.claim_sent([1])
    states.claim_done([1], is_full=False)
    assert states.to_await() == [1]


def test_messages_announced_during_a_claim_are_not_missed() -> None:
    states = awaiting(1)
    states.mark_claimable(1)
    states.claim_sent([1])
    assert states.mark_claimable(1)
    states.claim_done([1], is_full=False)
    assert states.claimable == {1}
    assert not states.mark_claimable(2)


def test_answers_about_a_removed_queue_change_nothing() -> None:
    states = awaiting(1)
    states.remove([1])
    states.claim_done([1], is_full=True)
    states.awaited([1], {1}, 0.0)
    states.left([1])
    assert states.claimable == set() and states.to_await() == [] and len(states) == 0
