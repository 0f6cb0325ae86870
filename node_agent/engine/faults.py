"""What a fault of MLX means, in words and in kind.

Pure: texts in, values out. The strings are those MLX and Metal print. Every fault of a step ends
the engine, because arrays touched by a failed command buffer are not to be trusted; the kind
only decides the words.
"""

from enum import StrEnum


class FaultKind(StrEnum):
    """What failed, as far as the text tells."""

    DEVICE_MEMORY = "device memory"
    DEVICE_TIMEOUT = "device timeout"
    DEVICE_PREEMPTED = "device preempted"
    DEVICE = "device"
    ALLOCATION = "allocation"
    OTHER = "other"

    @property
    def taints_arrays(self) -> bool:
        """Whether arrays alive at the fault may hold anything at all."""
        return self is not FaultKind.OTHER


_ALLOCATION_WORDS = ("[malloc]", "[metal::malloc]", "Unable to allocate", "std::bad_alloc")
_DEVICE_WORDS = (
    ("OutOfMemory", FaultKind.DEVICE_MEMORY),
    ("Insufficient Memory", FaultKind.DEVICE_MEMORY),
    ("GPU Timeout", FaultKind.DEVICE_TIMEOUT),
    ("ImpactingInteractivity", FaultKind.DEVICE_PREEMPTED),
    ("Impacting Interactivity", FaultKind.DEVICE_PREEMPTED),
)


def classify_fault(fault: BaseException) -> FaultKind:
    """Return what kind of fault an exception tells of. Pure."""
    text = str(fault)
    if "[METAL]" in text:
        return next((kind for words, kind in _DEVICE_WORDS if words in text), FaultKind.DEVICE)
    if isinstance(fault, MemoryError) or any(words in text for words in _ALLOCATION_WORDS):
        return FaultKind.ALLOCATION
    return FaultKind.OTHER


def explain_fault(fault: Exception) -> str:
    """Return a fault in words that name the fix where it is known. Pure."""
    text = str(fault).strip() or type(fault).__name__
    if "GatherMM" in text and "float32" in text:
        return (
            "the experts of this model are stored in half precision, which MLX on a CPU cannot "
            "multiply; use a float32 or a quantized copy, or a node with a GPU"
        )
    if isinstance(fault, FileNotFoundError):
        return f"the model directory is not complete: {text}"
    match classify_fault(fault):
        case FaultKind.ALLOCATION | FaultKind.DEVICE_MEMORY:
            return f"out of memory: {text}"
        case FaultKind.DEVICE_TIMEOUT:
            return f"the GPU took too long for one step; a smaller prefill chunk helps: {text}"
        case FaultKind.DEVICE_PREEMPTED:
            return f"macOS stopped the GPU's work to keep the display responsive: {text}"
        case FaultKind.DEVICE:
            return f"the GPU failed: {text}"
    return f"{type(fault).__name__}: {text}"
