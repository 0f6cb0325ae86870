"""Which Models a request to a Route goes to: weights, rules, fallbacks, conversations."""

import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.gateway.nodes.catalog import FleetView, list_models, names_of, resolve
from controller.gateway.nodes.routing import (
    Asking,
    draw_of,
    find_start,
    matches,
    order_backends,
    plan_models,
)
from manifests.errors import Code, Refusal
from manifests.kinds.route import Backend, Match, Route


def backends(*weights: int) -> list[Backend]:
    return [Backend(model=f"m{index}", weight=weight) for index, weight in enumerate(weights)]


def route(**spec: Any) -> Route:
    spec = {"backends": [{"model": "a"}], **spec}
    raw = {"kind": "Route", "metadata": {"name": "chat"}, "spec": spec}
    return Route.model_validate_json(json.dumps(raw))


def chat(*contents: str, system: str = "You help.") -> bytes:
    roles = ["user", "assistant"]
    messages = [{"role": "system", "content": system}] + [
        {"role": roles[index % 2], "content": text} for index, text in enumerate(contents)
    ]
    return json.dumps({"model": "chat", "messages": messages}).encode()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any))
def test_over_the_whole_line_each_backend_gets_exactly_its_share(weights: list[int]) -> None:
    whole = sum(weights)
    firsts = Counter(
        order_backends(backends(*weights), (point + 0.5) / whole)[0] for point in range(whole)
    )
    assert firsts == Counter({f"m{i}": weight for i, weight in enumerate(weights) if weight})


@given(
    st.lists(st.integers(0, 10), min_size=1, max_size=6).filter(any),
    st.floats(0, 1, exclude_max=True, allow_nan=False),
)
def test_the_others_follow_by_weight_and_none_of_weight_zero(
    weights: list[int], draw: float
) -> None:
    order = order_backends(backends(*weights), draw)
    live = {f"m{i}" for i, weight in enumerate(weights) if weight}
    assert len(order) == len(live)
    assert set(order) == live
    rest = [weights[int(name[1:])] for name in order[1:]]
    assert rest == sorted(rest, reverse=True)


def test_counts_follow_the_weights_over_many_draws() -> None:
    dice = random.Random(5)
    firsts = Counter(order_backends(backends(90, 10), dice.random())[0] for _ in range(5000))
    assert 400 <= firsts["m1"] <= 600


def test_raising_a_share_takes_requests_from_the_others_only() -> None:
    for point in range(1000):
        before = order_backends(backends(90, 10), point / 1000)[0]
        after = order_backends(backends(70, 30), point / 1000)[0]
        assert not (before == "m1" and after == "m0")


def test_fallbacks_come_after_every_backend_and_once() -> None:
    spec = route(backends=[{"model": "a"}, {"model": "b", "weight": 0}], fallbacks=["c", "a", "d"])
    assert plan_models(spec, Asking()) == ("a", "c", "d")


def test_the_first_rule_that_matches_chooses_the_backends() -> None:
    rules = [
        {"match": {"headers": {"X-Team": "red"}}, "backends": [{"model": "r"}]},
        {"match": {"headerPatterns": {"x-team": "r.*|blue"}}, "backends": [{"model": "p"}]},
    ]
    spec = route(rules=rules, fallbacks=["f"])
    expected = {b"red": "r", b"rose": "p", b"blue": "p", b"blues": "a", b"": "a"}
    for value, first in expected.items():
        assert plan_models(spec, Asking([(b"x-TEAM", value)])) == (first, "f")
    assert plan_models(spec, Asking()) == ("a", "f")


def test_all_that_a_match_names_must_hold() -> None:
    match = Match(headers={"a": "1", "b": "2"}, headerPatterns={"c": "[0-9]+"})
    full = [(b"a", b"1"), (b"b", b"2"), (b"c", b"33")]
    assert matches(match, full)
    for missing in range(3):
        assert not matches(match, full[:missing] + full[missing + 1 :])
    assert not matches(match, [*full[:2], (b"c", b"3" * 5000)])


def test_a_conversation_stays_where_it_began_and_conversations_spread() -> None:
    spec = route(backends=[{"model": "a"}, {"model": "b"}], sticky="prefix")
    sides = Counter()
    for number in range(400):
        turns = [f"question {number}", "an answer", "and then?", "more", "thanks"]
        seen = {
            plan_models(spec, Asking(body=chat(*turns[: 2 * length + 1]), draw=length / 3))[0]
            for length in range(3)
        }
        assert len(seen) == 1
        sides.update(seen)
    assert min(sides.values()) > 140


def test_a_conversation_is_told_by_all_up_to_its_first_question() -> None:
    assert find_start(chat("hi")) == find_start(chat("hi", "hello", "more"))
    assert find_start(chat("hi")) != find_start(chat("hi", system="Other."))
    assert find_start(chat("hi")) != find_start(chat("ho"))
    text = json.dumps({"prompt": "x" * 600}).encode()
    assert find_start(text) == find_start(json.dumps({"prompt": "x" * 900}).encode())
    assert find_start(json.dumps({"prompt": [[1, 2]]}).encode()) == b"[[1,2]]"
    for odd in (b"{}", b"[]", b"nonsense", b'{"messages": []}', b'{"messages": 3}'):
        assert find_start(odd) == b""
    assert find_start(b'{"messages": [1, {"role": 5}]}')


def test_a_point_is_the_same_for_ever_and_its_own_for_each_route() -> None:
    assert draw_of("chat", b"hello") == pytest.approx(0.1631569493740096)
    assert draw_of("chat", b"hello") == draw_of("chat", b"hello")
    assert draw_of("chat", b"hello") != draw_of("other", b"hello")
    assert 0 <= draw_of("chat", b"hello") < 1


def view(**names: str) -> FleetView:
    return FleetView(True, names=names, routes={"chat": route(fallbacks=["b"]), "a": route()})


def test_a_route_beats_a_model_of_its_name_and_skips_models_that_do_not_exist() -> None:
    fleet = view(b="b", alias="b", a="a")
    assert resolve(fleet, "chat", Asking()) == ("a", "b")
    assert resolve(fleet, "alias", Asking()) == ("b",)
    assert resolve(view(b="b"), "chat", Asking()) == ("b",)
    lost = resolve(view(c="c"), "chat", Asking())
    assert isinstance(lost, Refusal)
    assert (lost.code, "ResolvedRefs" in lost.hint) == (Code.NO_READY_ENGINE, True)
    assert list_models(fleet, 0) == []


def test_a_key_needs_the_name_of_the_route_and_not_of_a_model_behind_it() -> None:
    fleet = view(b="b", alias="b")
    assert names_of(fleet, "chat") == ("chat",)
    assert names_of(fleet, "alias") == ("alias", "b")
    assert names_of(fleet, "unknown") == ("unknown",)
