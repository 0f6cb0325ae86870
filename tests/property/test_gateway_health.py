"""B59: only failures in a row take a node out, only successes in a row bring it back."""

import random

from hypothesis import given
from hypothesis import strategies as st

from controller.gateway.nodes.health import (
    LOSSES_TO_DOWN,
    REPORTS_TO_RETURN,
    Health,
    Phase,
    StreamEvent,
    transition,
)
from controller.reconcile.leases import (
    Lease,
    LeaseBook,
    LeaseRules,
    NodeHealth,
    advance_leases,
    judge_nodes,
)

EVENTS = st.lists(st.sampled_from(StreamEvent), max_size=40)
RULES = LeaseRules()
LEASE_SECONDS = 10


def run(events: list[StreamEvent]) -> list[Health]:
    """Return the record after each event; event `n` comes at second `n`."""
    records = [Health()]
    for now, event in enumerate(events):
        records.append(transition(records[-1], event, float(now)))
    return records[1:]


def is_out(events: list[StreamEvent]) -> bool:
    """Return whether the last streak that decides took the node out, read from the end."""
    for end in range(len(events), 0, -1):
        seen = events[:end]
        if StreamEvent.REPORT not in seen:
            return False
        last = seen[-1]
        if last is StreamEvent.SILENT:
            return True
        if seen[-LOSSES_TO_DOWN:] == [StreamEvent.LOST] * LOSSES_TO_DOWN:
            return True
        if seen[-REPORTS_TO_RETURN:] == [StreamEvent.REPORT] * REPORTS_TO_RETURN:
            return False
    return False


@given(EVENTS)
def test_streaks_alone_decide(events: list[StreamEvent]) -> None:
    for count, health in enumerate(run(events), start=1):
        seen = events[:count]
        assert (health.phase is Phase.DOWN) == is_out(seen)
        assert health.routable == (StreamEvent.REPORT in seen and not is_out(seen))


@given(EVENTS)
def test_the_time_down_counts_from_the_first_failure_of_its_streak(
    events: list[StreamEvent],
) -> None:
    records = run(events)
    for count, health in enumerate(records):
        if health.phase is Phase.DOWN:
            since = health.down_since_seconds
            assert since is not None
            assert 0 <= since <= count
            assert records[int(since)].phase is Phase.DOWN
        elif health.phase is Phase.LIVE:
            assert health.down_since_seconds is None


@given(st.lists(st.integers(LOSSES_TO_DOWN - 1, 9), min_size=1, max_size=60))
def test_single_lost_probes_never_take_a_node_out(reports_between: list[int]) -> None:
    events = [StreamEvent.REPORT]
    for reports in reports_between:
        events += [StreamEvent.LOST, *[StreamEvent.REPORT] * reports]
    assert all(health.routable for health in run(events))


@given(st.integers(0, 2**32))
def test_one_renewal_in_twenty_lost_at_random_moves_no_engine(seed: int) -> None:
    """Ten minutes of it, at the lease's own pace."""
    draw = random.Random(seed)
    book, value = LeaseBook(), 0
    for now in range(600):
        if now % LEASE_SECONDS == 0 and draw.randrange(20):
            value = now
        leases = {"a": Lease(str(value), float(LEASE_SECONDS)), "b": Lease(str(now), 10.0)}
        book = advance_leases(book, leases, float(now), listening=True, rules=RULES)
        assert judge_nodes(book, RULES)["a"] is not NodeHealth.LOST


@given(st.lists(st.integers(1, RULES.missed_leases - 1), min_size=1, max_size=20))
def test_fewer_lost_renewals_in_a_row_than_the_rule_says_change_nothing(gaps: list[int]) -> None:
    book, now = LeaseBook(), 0
    for value, lost in enumerate(gaps):
        for _ in range((lost + 1) * LEASE_SECONDS - 1):
            now += 1
            leases = {"a": Lease(str(value), float(LEASE_SECONDS))}
            book = advance_leases(book, leases, float(now), listening=True, rules=RULES)
            assert judge_nodes(book, RULES)["a"] is not NodeHealth.EXPIRED
