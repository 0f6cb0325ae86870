from controller.placement.filters import Reason
from controller.placement.fleet import PlacedEngine, SourceFault, estimate_need
from controller.placement.place import Placement, Unplaceable, bind, place
from manifests.kinds.model import Context, Prefill
from manifests.kinds.node import Taint
from manifests.units import GIB
from tests.support.placing import SOURCE, fleet, inspection, node, request


def test_a_copy_goes_to_the_node_that_keeps_the_largest_share_free() -> None:
    placed = place(request(), fleet(node("small", 8), node("large", 32)))
    assert isinstance(placed, Placement)
    assert placed.node == "large"
    assert [item.node for item in placed.candidates if item.chosen] == ["large"]


def test_equal_nodes_are_chosen_by_name_whatever_their_order() -> None:
    one = place(request(), fleet(node("b"), node("a")))
    other = place(request(), fleet(node("a"), node("b")))
    assert isinstance(one, Placement)
    assert isinstance(other, Placement)
    assert one.node == other.node == "a"


def test_copies_of_one_model_spread_before_they_double_up() -> None:
    view = fleet(node("large", 64), node("small", 8))
    first = place(request(), view)
    assert isinstance(first, Placement)
    second = place(request(), view.with_engine(bind(request(), first, "m-0")))
    assert isinstance(second, Placement)
    assert (first.node, second.node) == ("large", "small")


def test_a_copy_that_fits_nowhere_names_the_bytes_and_the_nearest_node() -> None:
    view = fleet(node("mac-mini", 8), node("mac-studio", 56), weights={SOURCE: 57})
    refused = place(request(), view)
    assert isinstance(refused, Unplaceable)
    assert refused.reason == Reason.INSUFFICIENT_MEMORY
    assert refused.message.startswith("needs 57.")
    assert "weights 57.0 GiB + context" in refused.message
    assert "for 64 tokens" in refused.message
    assert (
        "nearest is mac-studio: 56.0 GiB free of a 56.0 GiB ceiling (static), short by"
    ) in refused.message
    short = {item.node: item.short_bytes for item in refused.candidates}
    assert short["mac-mini"] - short["mac-studio"] == 48 * GIB


def test_memory_of_engines_already_bound_is_not_given_twice() -> None:
    other = PlacedEngine("x-0", "x", "a", 7 * GIB)
    refused = place(request(), fleet(node("a", 10), engines=(other,)))
    assert isinstance(refused, Unplaceable)
    (candidate,) = refused.candidates
    assert (candidate.placed_bytes, candidate.available_bytes) == (7 * GIB, 3 * GIB)
    assert "3.00 GiB free of a 10.0 GiB ceiling" in candidate.message


def test_every_other_obstacle_has_its_own_reason() -> None:
    view = fleet(
        node("asleep", ready=False, why_not_ready="the node has stopped renewing its lease"),
        node("stranded", why_reboot="engine a left 3.00 GiB wired"),
        node("cordoned", schedulable=False),
        node("tainted", taints=(Taint(key="gpu", value="training"),)),
        node("unlabelled"),
        node("silent", 0, labels={"disk": "fast"}),
        node("without", labels={"disk": "fast"}),
    )
    missing = SourceFault(Reason.SOURCE_MISSING, "/models/tiny does not exist")
    sources = {**view.sources, ("without", SOURCE): missing}
    view = type(view)(view.nodes, view.engines, sources, view.shapes)
    assert isinstance(place(request(), view), Placement)
    selective = place(request(node_selector={"disk": "fast"}), view)
    assert isinstance(selective, Unplaceable)
    reasons = {item.node: item.reason for item in place(request(), view).candidates}
    assert reasons == {
        "asleep": "NotReady",
        "stranded": "RebootNeeded",
        "cordoned": "Cordoned",
        "tainted": "Tainted",
        "unlabelled": "",
        "silent": "NotReady",
        "without": "SourceMissing",
    }
    assert selective.reason == "SourceMissing"
    assert selective.message.startswith("without: /models/tiny does not exist")
    assert "5 SelectorMismatch" in selective.message


def test_a_node_can_be_selected_by_its_name() -> None:
    selector = {"mlxfleet.dev/node": "b"}
    placed = place(request(node_selector=selector), fleet(node("a", 64), node("b")))
    assert isinstance(placed, Placement)
    assert placed.node == "b"


def test_a_taint_that_only_prefers_is_avoided_but_no_obstacle() -> None:
    spare = node("spare", 64, taints=(Taint(key="quiet", effect="PreferNoSchedule"),))
    avoided = place(request(), fleet(spare, node("plain", 10)))
    alone = place(request(), fleet(spare))
    assert isinstance(avoided, Placement)
    assert isinstance(alone, Placement)
    assert (avoided.node, alone.node) == ("plain", "spare")


def test_a_fleet_without_nodes_says_so() -> None:
    refused = place(request(), fleet())
    assert isinstance(refused, Unplaceable)
    assert (refused.reason, refused.message) == ("NoNodes", "no node has registered")


def test_the_minimum_context_never_exceeds_what_model_and_manifest_allow() -> None:
    known = inspection(1)
    wide = estimate_need(known, Context(minTokens=1_000_000), Prefill())
    narrow = estimate_need(known, Context(minTokens=4096, maxTokens=128), Prefill())
    assert wide.context_tokens == known.shape.context_tokens
    assert narrow.context_tokens == 128
    assert narrow.context_bytes < wide.context_bytes
