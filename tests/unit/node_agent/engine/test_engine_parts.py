"""Where chunks end, which rows share a batch, and what faults mean."""

import pytest

from node_agent.engine.batching.chunking import cut_chunk
from node_agent.engine.batching.grouping import can_share, choose_group
from node_agent.engine.faults import FaultKind, classify_fault, explain_fault

METAL = "[METAL] Command buffer execution failed: "


@pytest.mark.parametrize(
    ("fed", "last", "limit", "stops", "tokens"),
    [
        (0, 1000, 64, (), 64),
        (960, 1000, 64, (), 40),
        (1000, 1000, 64, (), 0),
        (0, 0, 64, (), 0),
        # A chunk that was shrunk once does not push the others off the step boundaries.
        (224, 1000, 64, (), 32),
        (41, 1000, 300, (), 215),
        (256, 1000, 700, (), 512),
        (0, 100, 512, (), 100),
        # Offsets at which the cache is wanted as it stands there.
        (0, 1000, 512, (256, 512), 256),
        (256, 1000, 512, (256, 300), 44),
        (0, 1000, 0, (), 1),
    ],
)
def test_where_a_chunk_ends(fed, last, limit, stops, tokens):
    assert cut_chunk(fed, last, limit, stops) == tokens


def test_rows_of_like_length_share_a_batch_and_unequal_ones_do_not():
    assert can_share([100, 350])
    assert can_share([30_000, 29_000, 26_000])
    assert not can_share([30_000, 100])
    assert not can_share([30_000, *[100] * 31])
    assert can_share([5])


def test_a_row_goes_where_it_adds_the_least_padding():
    groups = [[30_000], [100, 120], [300]]
    assert choose_group(groups, 110) == 1
    assert choose_group(groups, 310) == 2
    assert choose_group(groups, 29_000) == 0
    assert choose_group(groups, 5_000) is None
    assert choose_group([], 5) is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            METAL + "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
            FaultKind.DEVICE_MEMORY,
        ),
        (
            METAL + "Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)",
            FaultKind.DEVICE_TIMEOUT,
        ),
        (
            METAL + "Impacting Interactivity "
            "(0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)",
            FaultKind.DEVICE_PREEMPTED,
        ),
        (METAL + "something new", FaultKind.DEVICE),
        ("[malloc] Unable to allocate 68719476736 bytes.", FaultKind.ALLOCATION),
        ("[metal::malloc] Resource limit (499000) exceeded.", FaultKind.ALLOCATION),
        (
            "[metal::malloc] Attempting to allocate 40000000000 bytes which is greater than the "
            "maximum allowed buffer size of 38654705664 bytes.",
            FaultKind.ALLOCATION,
        ),
        ("std::bad_alloc", FaultKind.ALLOCATION),
        ("[matmul] Last dimension of first input must match", FaultKind.OTHER),
    ],
)
def test_recorded_faults_are_told_apart(text, kind):
    fault = RuntimeError(text)
    assert classify_fault(fault) is kind
    assert classify_fault(fault).taints_arrays is (kind is not FaultKind.OTHER)
    assert text in explain_fault(fault)


def test_running_out_of_memory_is_said_in_words():
    assert classify_fault(MemoryError()) is FaultKind.ALLOCATION
    assert "out of memory" in explain_fault(MemoryError("no more"))
    assert "smaller prefill chunk" in explain_fault(
        RuntimeError(METAL + "Caused GPU Timeout Error")
    )
