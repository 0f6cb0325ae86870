"""A counted prompt, and how much of it each endpoint has."""

from typing import Any

from controller.gateway.choice.prompt_facts import (
    CachedPrefixes,
    PromptFacts,
    PromptKind,
    Sharing,
    cached_tokens,
    merge_facts,
    plan_kinds,
)
from controller.gateway.http.peek import Peeked, peek
from controller.gateway.nodes.endpoints import EndpointKey, NodeReport, plan_endpoints
from controller.gateway.nodes.held import Held
from manifests.kinds.engine import Engine, EnginePhase
from manifests.wire.prefix_chain import ChainRoot, PrefixChain, pack_tokens
from manifests.wire.report import EngineLoad, LoadReport

KEY = EndpointKey("n", "e")
IDS = pack_tokens(range(100))


def endpoint(engine: str = "e", **load: Any):  # type: ignore[no-untyped-def]
    fields = {"phase": EnginePhase.READY, "accepting": True, "text_fingerprint": "t", **load}
    one = EngineLoad(name=engine, model="m", **fields)
    report = LoadReport(node="n", instance="i", sequence=1, accepting=True, engines=(one,))
    [found] = plan_endpoints(NodeReport("n", "http://n", report, 0.0, routable=True))
    return found


def engine(name: str = "e", **variables: Any) -> Engine:
    return Engine.model_validate(
        {
            "metadata": {"name": name},
            "spec": {
                "model": "m",
                "node": "n",
                "revision": "r",
                "source": {"path": "/m"},
                "chatTemplate": {"variables": variables},
            },
        }
    )


def held(*counts: int, keys: tuple[str, ...] = (), block_tokens: int = 16) -> Held:
    """What an engine holds that kept the first so many blocks."""
    chain = PrefixChain.of_packed(ChainRoot("f", keys), IDS, block_tokens)
    return Held("f", block_tokens, {chain.digests[count - 1] for count in counts})


def test_the_deepest_block_that_is_held_counts() -> None:
    chain = PrefixChain.of_packed(ChainRoot("f"), IDS, 16)
    assert cached_tokens(held(1, 2, 5).digests, chain) == 80
    assert cached_tokens(held(1).digests, chain) == 16
    assert cached_tokens(set(), chain) == 0
    assert cached_tokens({b"x" * 32}, chain) == 0


def test_cached_tokens_follow_what_is_held_at_the_moment() -> None:
    now = held(2)
    cached = CachedPrefixes({KEY: IDS}, lambda _: (), lambda key: now if key == KEY else None)
    assert cached.get(KEY, 0) == 32
    now.digests |= held(4).digests
    now.version += 1
    assert cached.get(KEY, 0) == 64
    now = held(1)
    assert cached[KEY] == 16
    assert cached.get(EndpointKey("other", "e"), 0) == 0


def test_other_tenants_prefixes_and_those_of_other_weights_are_none() -> None:
    theirs = Sharing(tenant="a").keys(endpoint(cache_isolated=True))
    place = held(3, keys=theirs)

    def seen(sharing: Sharing, **load: Any) -> int:
        keys = sharing.keys(endpoint(**load))
        return CachedPrefixes({KEY: IDS}, lambda _: keys, lambda _: place)[KEY]

    assert seen(Sharing(tenant="a"), cache_isolated=True) == 48
    assert seen(Sharing(tenant="b"), cache_isolated=True) == 0
    assert seen(Sharing(tenant="a")) == 0
    assert seen(Sharing(tenant="a", isolated=True)) == 48
    assert seen(Sharing(tenant="a", cache_salt="s"), cache_isolated=True) == 0
    place.fingerprint = "other"
    assert seen(Sharing(tenant="a"), cache_isolated=True) == 0


def test_engines_of_one_tokenizer_and_the_same_variables_are_one_kind() -> None:
    engines = {"e": engine("e", a=1), "f": engine("f", a=1), "g": engine("g", a=2)}
    one, two, three = (endpoint(name) for name in "efg")
    kinds = plan_kinds([one, two, three, endpoint("h")], engines)
    assert kinds[one.key] == kinds[two.key] == PromptKind("t", b'{"a":1}')
    assert kinds[three.key] != kinds[one.key]
    assert kinds[EndpointKey("n", "h")] is None
    assert plan_kinds([endpoint(text_fingerprint="")], engines) == {KEY: None}
    assert plan_kinds([endpoint(accepting=False)], engines) == {}


def test_a_count_that_some_endpoint_does_not_share_is_no_exact_one() -> None:
    short, long = PromptFacts.of([pack_tokens([1])]), PromptFacts.of([IDS, pack_tokens([1, 2])])
    assert (long.tokens, long.prompts, long.total_tokens, long.ids) == (100, 2, 102, IDS)
    assert merge_facts([short, long]) == long
    some = merge_facts([short, None])
    assert some is not None
    assert (some.tokens, some.exact) == (1, False)
    assert merge_facts([None]) is merge_facts([]) is None


def test_only_what_the_prompt_is_made_of_is_counted() -> None:
    body = b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": null'
    seen = peek(body + b', "temperature": 1, "cache_salt": "s"}')
    same = peek(body + b', "temperature": 0}')
    assert isinstance(seen, Peeked)
    assert isinstance(same, Peeked)
    assert seen.prompt_body == same.prompt_body
    assert seen.prompt_body == (b'{"messages":[{"role": "user", "content": "x"}],"tools":null}')
    assert (seen.cache_salt, same.cache_salt) == ("s", "")
    assert "content" not in repr(seen)
