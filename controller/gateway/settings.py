"""The gateway's settings as one frozen slice; `controller/app.py` parses them once."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Limits of the OpenAI endpoint. Units: as the names end; None where said."""

    max_body_bytes: int = 32 * 1024 * 1024
    """Larger request bodies get 413 before they are parsed."""
    max_answer_bytes: int = 64 * 1024 * 1024
    """A larger answer that is not a stream, or a larger stream event, counts as malformed."""
    bytes_per_token: float = 4.0
    """Rough size of a token in a request, for choosing a node; the agent counts exactly."""
    assumed_output_tokens: int = 512
    """Output to expect of a request that sets no limit."""
    max_attempts: int = 3
    """Upstream requests for one client request, the first included."""
    max_faults: int = 2
    """Of these, how many may end in a fault: a prompt that kills engines must not tour them."""
    retry_deadline_seconds: float = 60.0
    """No attempt starts later than this after the request came."""
    max_moves: int = 3
    """So often a stream may go on at another node in mid-answer; 0 switches that off."""
    move_after_seconds: float = 5.0
    """A stream leaves a node of which neither it nor the load stream has had a byte for so long."""
    connect_timeout_seconds: float = 5.0
    stall_seconds: float = 60.0
    """A stream without any byte for this long is dead; agents send comments every 15 s."""
    wake_seconds: float = 130.0
    """The same for an engine that must come back first; agents wait 120 s for one."""
    answer_seconds: float = 3600.0
    """The longest wait for an answer that is not a stream, from a node that is alive."""
    catch_up_seconds: float = 2.0
    """Wait so long for reports, which may lag behind: of an engine that is declared ready, and of
    every node before a prompt is refused for good."""
    silence_seconds: float = 3.0
    """A node whose load stream is silent for this long is not routed to."""
    dead_seconds: float = 15.0
    """Requests without a byte yet leave a node that has been down for this long."""
    idle_connection_seconds: float = 4.0
    """Idle upstream connections are dropped sooner than any agent drops them."""
    settle_seconds: float = 0.5
    """How long after a request is sent the node's load report certainly counts it."""
    queue_size: int = 512
    """Requests that fit nowhere now and wait at the gateway; more get 503."""
    queue_seconds: float = 30.0
    """How long such a request waits, unless its own deadline_seconds says; then 503."""
    queue_head_seconds: float = 15.0
    """After this wait a stream's head is sent, and its end by time is an event, not a status."""
    queue_comment_seconds: float = 10.0
    """From then on a comment is sent so often, for clients that give up on silence."""
    tokenizer_dir: Path | None = None
    """Where models' tokenizers are kept; None: a directory that ends with the process."""
    tokenizer_bytes: int = 2**30
    """What they may take of the disk; the longest unused go first."""
    tokenizer_processes: int = 8
    """One a text fingerprint; prompts of further ones are estimated while all are in use."""
    tokenizer_wait_seconds: float = 0.05
    """The longest wait for a tokenizer that is not loaded yet; then the prompt is estimated."""
    tokenizer_bytes_per_second: float = 100_000.0
    """A longer prompt may take this much longer to count before it is estimated."""
    prompt_cache_bytes: int = 64 * 1024 * 1024
    """Token ids of prompts kept, four bytes a token, so that a repeated one is not counted anew."""
    prefix_names: int = 200_000
    """Names of cached prefixes kept of each node, about 130 bytes each; more are left out."""
    seed: int | None = None
    """Seed of the tie break; None draws one from the system."""
    require_key: bool = False
    """Refuse requests without an API key even while no ApiKey is declared."""
    usage_seconds: float = 10.0
    """How often the usage of keys is written into their status."""
