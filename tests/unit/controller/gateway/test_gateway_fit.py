"""Decisions by bytes: where a prompt fits, who is spared, who waits, what never fits."""

from typing import Any

from controller.gateway.choice.choosing import refuse_never
from controller.gateway.choice.demand import Demand, Hold
from controller.gateway.choice.explain import ROUTE_CHARS_MAX, describe_route, explain
from controller.gateway.choice.fit import Limit, plan_fit
from controller.gateway.choice.selection import (
    Circumstances,
    Decision,
    Excluded,
    Outcome,
    Why,
    decide,
)
from controller.gateway.nodes.endpoints import EndpointView
from manifests.units import MIB
from tests.support.rooms import NOW, make_room
from tests.support.rooms import make_endpoint as node


def prompt(mib: int, **changes: Any) -> Demand:
    """A prompt whose keys and values are about so large."""
    return Demand(**{"prompt_tokens": mib * 16, "output_tokens": 16, "exact": True, **changes})


def decided(*nodes: EndpointView, demand: Demand, **around: Any) -> Decision:
    return decide(nodes, demand, Circumstances(**{"now_seconds": NOW, **around}), 0.0)


def winner(*nodes: EndpointView, demand: Demand, **around: Any) -> str:
    found = decided(*nodes, demand=demand, **around).winner
    return "" if found is None else found.key.node


SMALL, LARGE = node("small", 100, 100), node("large", 4000, 4000)


def test_long_prompts_go_where_they_fit_and_short_ones_spare_that_room() -> None:
    assert winner(SMALL, LARGE, demand=prompt(1000)) == "large"
    assert winner(SMALL, LARGE, demand=prompt(10)) == "small"
    # Sparing is for ties only: a small node with a queue is not worth waiting for.
    busy = node("small", 100, 100, running=4, waiting=3)
    assert winner(busy, LARGE, demand=prompt(10)) == "large"


def test_nodes_of_one_size_share_though_one_has_a_little_more_room() -> None:
    twins = node("a", 90, 100), node("b", 80, 110)
    used = {twins[0].key: 5.0}
    assert winner(*twins, demand=prompt(10), last_used=used) == "b"


def test_a_request_without_a_limit_needs_what_its_node_reserves_for() -> None:
    assert plan_fit(SMALL, prompt(10, capped=True)).fits_now
    # The node reserves for 4096 tokens, which are 256 MiB here.
    assert not plan_fit(SMALL, prompt(10, capped=False)).fits_now


def test_several_answers_need_several_times_the_memory() -> None:
    one, four = (plan_fit(LARGE, prompt(10, rows=rows)).need_bytes for rows in (1, 4))
    assert four > 3 * one


def test_what_we_have_just_sent_takes_room_from_the_next() -> None:
    hold = Hold(requests=1, unseen_requests=1, unseen_bytes=3500 * MIB)
    both = node("a", 4000, 4000), node("b", 1500, 4000)
    assert winner(*both, demand=prompt(1000), holds={both[0].key: hold}) == "b"


def test_what_fits_once_others_are_done_waits_and_what_never_fits_is_refused() -> None:
    busy = node("large", 500, 4000)
    assert decided(SMALL, busy, demand=prompt(1000)).outcome is Outcome.WAIT
    never = decided(SMALL, LARGE, demand=prompt(5000))
    assert (never.outcome, never.why) == (Outcome.NEVER, Why.TOO_LARGE)
    refusal = refuse_never(never)
    assert refusal is not None
    assert (refusal.http_status, refusal.node, refusal.binding) == (413, "large", "static")
    assert refusal.limit_bytes == 4000 * MIB
    assert (refusal.estimated_bytes or 0) > 5000 * MIB
    assert refusal.fitting_tokens is not None
    assert 3900 * 16 < refusal.fitting_tokens < 4000 * 16
    assert "The nearest is large" in refusal.message


def test_a_guess_at_the_tokens_refuses_nobody_and_holds_nobody_back() -> None:
    guess = prompt(5000, exact=False)
    assert decided(SMALL, LARGE, demand=guess).why is Why.ROOMIEST
    busy = node("large", 500, 4000)
    assert decided(SMALL, busy, demand=prompt(1000, exact=False)).why is Why.ROOMIEST


def test_nothing_is_refused_for_good_on_old_or_missing_figures() -> None:
    huge = prompt(5000)
    assert decided(SMALL, LARGE, demand=huge, now_seconds=NOW + 60).outcome is not Outcome.NEVER
    assert decided(SMALL, LARGE, demand=huge, complete=False).outcome is not Outcome.NEVER
    silent = node("old", 0, 0, room=None, shape=None, tokens_fit_now=10)
    assert decided(SMALL, silent, demand=huge).outcome is not Outcome.NEVER


def test_a_node_that_can_free_what_is_missing_is_asked_before_anybody_waits() -> None:
    cached = node("a", 500, 4000, room=make_room(500, 4000, givable_bytes=1000 * MIB))
    assert decided(cached, demand=prompt(1000)).why is Why.MAKES_ROOM
    assert decided(cached, demand=prompt(3000)).outcome is Outcome.WAIT
    assert winner(cached, LARGE, demand=prompt(1000)) == "large"


def test_a_small_node_full_of_hot_cache_still_takes_short_requests_before_a_large_one() -> None:
    room = make_room(5, 1000, givable_bytes=900 * MIB, hot_bytes=600 * MIB)
    small = node("small", 5, 1000, room=room)
    assert winner(small, LARGE, demand=prompt(20)) == "small"
    assert decided(small, LARGE, demand=prompt(20)).why is Why.MAKES_ROOM
    # Beyond the caches an idle engine would have to leave: the large node first.
    assert winner(small, LARGE, demand=prompt(700)) == "large"
    assert winner(LARGE, demand=prompt(700)) == "large"


def test_an_unloaded_engine_is_woken_when_it_alone_would_hold_the_prompt() -> None:
    room = make_room(500, 4000, absent_bytes=300 * MIB)
    asleep = node("large", 0, 0, room=room, accepting=False, wakes=True)
    assert decided(SMALL, asleep, demand=prompt(1000)).why is Why.WAKES
    # Its weights must fit beside the prompt.
    assert decided(SMALL, asleep, demand=prompt(3800)).outcome is Outcome.NEVER


def test_what_waiting_requests_have_a_claim_on_is_left_to_them() -> None:
    claimed = {LARGE.key}
    assert winner(SMALL, LARGE, demand=prompt(10), claimed=claimed) == "small"
    waits = decided(SMALL, LARGE, demand=prompt(1000), claimed=claimed)
    assert waits.outcome is Outcome.WAIT
    assert waits.could_hold == claimed


def test_a_cached_prefix_is_worth_its_prefill_but_takes_its_memory_all_the_same() -> None:
    twins = node("a", 4000, 4000), node("b", 4000, 4000)
    assert winner(*twins, demand=prompt(1000), cached={twins[1].key: 12_000}) == "b"
    cold, warm = plan_fit(twins[0], prompt(1000)), plan_fit(twins[1], prompt(1000))
    assert cold.need_bytes == warm.need_bytes


def test_a_panicked_node_is_second_choice() -> None:
    room = make_room(4000, 4000)
    knobs = room.knobs.model_copy(update={"ceiling_ratio": 0.9})
    panicked = node("a", 0, 0, room=room.model_copy(update={"knobs": knobs}))
    assert winner(panicked, node("b", 4000, 4000), demand=prompt(1)) == "b"


def test_a_decision_keeps_what_it_was_made_from() -> None:
    full = node("full", 4000, 4000, running=4, waiting=4)
    made = decided(SMALL, LARGE, full, demand=prompt(1000), cached={LARGE.key: 8000})
    assert [(item.endpoint.key.node, item.excluded) for item in made.candidates] == [
        ("large", Excluded.NOT),
        ("small", Excluded.NEVER),
        ("full", Excluded.FULL),
    ]
    assert made.won is not None
    assert made.won.fit.limited_by is Limit.NOTHING
    told = explain(made, "m")
    assert (told.outcome, told.node, told.exact) == ("send", "large", True)
    first = told.candidates[0]
    assert first.seconds is not None
    assert first.seconds.prefill == 8.0
    assert first.cached_tokens == 8000
    assert describe_route(made).startswith("large/m-large fits 1.00GiB of 3.91GiB, 8000 of 16000")


def test_the_header_is_short_and_plain_however_many_nodes_there_are() -> None:
    many = [node(f"node-with-a-rather-long-name-{i}", 10, 10) for i in range(200)]
    line = describe_route(decided(*many, LARGE, demand=prompt(1000)), waited_seconds=1.25)
    assert len(line) <= ROUTE_CHARS_MAX
    assert line.isascii()
    assert "waited 1.2s" in line
    assert "more" in line
