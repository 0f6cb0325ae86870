"""What gateways are told of stored prefixes."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from manifests.kinds.engine import EnginePhase
from manifests.wire.prefixes import NAMES_PER_LINE, PrefixChanges
from node_agent.api.prefix_lines import Told, look, plan_lines
from node_agent.engine.messages import CacheSettings, Loaded
from node_agent.pool.base import EngineView
from node_agent.pool.cache_side import CacheTerms, CacheView
from tests.support.pools import make_want

TERMS = CacheTerms(enabled=True, settings=CacheSettings(block_tokens=64))
LOADED = Loaded(device="d", mlx_version="0", chunk_tokens=1, active_bytes=1, cache_fingerprint="f")


class Reader:
    """A gateway that believes what it reads."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[str, int, set[str]]] = {}

    def read(self, line: PrefixChanges) -> None:
        if line.full:
            self.known[line.engine] = (line.fingerprint, line.block_tokens, set())
        names = self.known[line.engine][2]
        assert not set(line.added) & names
        assert set(line.removed) <= names
        names.update(line.added)
        names.difference_update(line.removed)
        if not line.fingerprint:
            del self.known[line.engine]


NAMES = st.frozensets(st.integers(0, 9).map(lambda n: bytes([n]) * 32))
STATES = st.dictionaries(
    st.sampled_from("abc"), st.builds(Told, st.sampled_from("fg"), st.sampled_from([64]), NAMES)
)


@given(st.lists(STATES, max_size=5))
def test_a_reader_always_knows_what_is_held(states: list[dict[str, Told]]) -> None:
    reader, before = Reader(), dict[str, Told]()
    for now in states:
        for line in plan_lines(before, now):
            reader.read(line)
        before = now
        expected = {
            engine: (told.fingerprint, told.block_tokens, {name.hex() for name in told.held})
            for engine, told in now.items()
        }
        assert reader.known == expected
        assert list(plan_lines(now, now)) == []


def test_a_large_set_takes_several_lines_and_only_the_first_is_full() -> None:
    held = frozenset(n.to_bytes(32, "big") for n in range(NAMES_PER_LINE + 1))
    lines = list(plan_lines({}, {"a": Told("f", 64, held)}))
    assert [(line.full, len(line.added)) for line in lines] == [(True, NAMES_PER_LINE), (False, 1)]


def test_an_engine_is_told_of_once_it_has_told_what_it_holds() -> None:
    view = EngineView(make_want("a"), EnginePhase.READY)
    silent = CacheView(began=TERMS)
    assert look([view, replace(view, loaded=LOADED, cache=silent)]) == {}
    spoken = replace(silent, held=frozenset({b"x"}), changes=1)
    found = look([replace(view, loaded=LOADED, cache=spoken)])
    assert found == {"a": Told("f", 64, frozenset({b"x"}))}
