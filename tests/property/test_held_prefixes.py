"""What a gateway believes is held is what the agent's lines told, whatever changed in between."""

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.gateway.nodes.held import NodePrefixes
from manifests.wire.prefixes import PrefixChanges
from node_agent.api import prefix_lines
from node_agent.api.prefix_lines import Told, plan_lines

NAMES = [bytes([number]) * 32 for number in range(12)]
TOLD = st.builds(
    Told,
    fingerprint=st.sampled_from(["f", "g"]),
    block_tokens=st.sampled_from([16, 32]),
    held=st.frozensets(st.sampled_from(NAMES)),
)
MOMENTS = st.lists(
    st.tuples(st.booleans(), st.dictionaries(st.sampled_from(["a", "b", "c"]), TOLD)), max_size=8
)


def believed(node: NodePrefixes) -> dict[str, Told]:
    found = {name: node.find(name) for name in "abc"}
    return {
        name: Told(held.fingerprint, held.block_tokens, frozenset(held.digests))
        for name, held in found.items()
        if held is not None
    }


@settings(max_examples=120)
@given(moments=MOMENTS, per_line=st.integers(1, 5))
def test_the_map_follows_adds_removes_new_roots_and_reconnects(
    moments: list[tuple[bool, dict[str, Told]]], per_line: int
) -> None:
    before: dict[str, Told] = {}
    node = NodePrefixes(1000)
    saved, prefix_lines.NAMES_PER_LINE = prefix_lines.NAMES_PER_LINE, per_line
    try:
        for reconnects, now in moments:
            if reconnects:
                node, before = NodePrefixes(1000), {}
                assert node.take(PrefixChanges()) == 0
            for line in plan_lines(before, now):
                wire = PrefixChanges.model_validate_json(line.model_dump_json(by_alias=True))
                assert node.take(wire) == 0
            before = now
            assert believed(node) == now
            assert node.names == sum(len(told.held) for told in now.values())
    finally:
        prefix_lines.NAMES_PER_LINE = saved


@settings(max_examples=120)
@given(moments=MOMENTS, most=st.integers(0, 10))
def test_no_more_names_are_kept_than_the_bound_and_none_that_is_not_held(
    moments: list[tuple[bool, dict[str, Told]]], most: int
) -> None:
    before: dict[str, Told] = {}
    node = NodePrefixes(most)
    for _, now in moments:
        dropped = sum(node.take(line) for line in plan_lines(before, now))
        before = now
        assert node.names == sum(len(told.held) for told in believed(node).values()) <= most
        for name, told in believed(node).items():
            assert told.held <= now[name].held
        lacking = sum(len(told.held) for told in now.values()) - node.names
        assert lacking == 0 or dropped > 0 or node.dropped > 0


def test_a_line_that_cannot_be_read_changes_nothing() -> None:
    node = NodePrefixes(10)
    node.take(PrefixChanges(engine="a", fingerprint="f", block_tokens=16, added=(NAMES[0].hex(),)))
    for bad in ("zz", "00"):
        line = PrefixChanges(engine="a", fingerprint="f", block_tokens=16, full=True, added=(bad,))
        try:
            node.take(line)
        except ValueError:
            assert believed(node)["a"].held == {NAMES[0]}
        else:
            raise AssertionError("a bad name was taken")


def test_a_full_set_replaces_what_was_told_before_it() -> None:
    node, root = NodePrefixes(10), {"engine": "a", "fingerprint": "f", "block_tokens": 16}
    node.take(PrefixChanges(**root, full=True, added=(NAMES[0].hex(), NAMES[1].hex())))
    node.take(PrefixChanges(**root, full=True, added=(NAMES[2].hex(),)))
    assert believed(node)["a"].held == {NAMES[2]}
    assert node.names == 1
