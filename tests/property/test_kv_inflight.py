"""Whatever happens to requests that share prefixes, each block has one owner and all end."""

import hypothesis.strategies as st
from hypothesis import given

from node_agent.kvcache.inflight import Inflight, Turn, block_done, join, leave, overdue

# Chains over a small tree: a prefix of digits names its blocks.
paths = st.text("ab", min_size=1, max_size=4)
events = st.lists(
    st.tuples(st.sampled_from(["join", "done", "leave", "late"]), st.integers(0, 5), paths),
    max_size=60,
)


def names(path: str) -> tuple[bytes, ...]:
    return tuple(path[: end + 1].encode() for end in range(len(path)))


@given(events)
def test_no_request_is_lost_and_no_two_compute_a_block(steps: list[tuple[str, int, str]]) -> None:
    state, turn, now = Inflight(wait_seconds=5), dict[str, Turn](), 0.0
    for event, number, path in steps:
        now += 1
        request_id, before = f"r{number}", state
        if event == "join" and request_id not in turn:
            state, verdicts = join(state, request_id, names(path), now)
        elif event == "leave" and request_id in turn:
            del turn[request_id]
            state, verdicts = leave(state, request_id, now)
        elif event == "late":
            state, verdicts = overdue(state, now)
        elif event == "done" and turn.get(request_id) is Turn.COMPUTE:
            mine = sorted(d for d, owner in state.computing.items() if owner == request_id)
            state, verdicts = block_done(state, request_id, mine[0], now) if mine else (state, ())
        else:
            continue
        turn.update({verdict.request_id: verdict.turn for verdict in verdicts})
        waiting = {entry.request_id for entry in state.waiting}
        assert waiting == {name for name, what in turn.items() if what is Turn.WAIT}
        assert all(turn[owner] is Turn.COMPUTE for owner in state.computing.values())
        assert all(state.computing[x.digest] == x.computing_id for x in state.waiting), before
    # Those who compute leave; all who wait get their turn in the end.
    for _ in range(len(turn) + 1):
        computing = [name for name, what in turn.items() if what is Turn.COMPUTE]
        for request_id in computing:
            del turn[request_id]
            state, verdicts = leave(state, request_id, now)
            turn.update({verdict.request_id: verdict.turn for verdict in verdicts})
    assert turn == {}
    assert state.computing == {}
