"""The frozen messages between an agent and an engine process, defined once.

Commands go to the engine, events come back; each is one msgpack map tagged by type, framed
with a four-byte big-endian length. They hold plain numbers, strings and bytes, never arrays.
Every request is keyed by its `request_id` and ends with exactly one `Finished` or `Failed`.
"""

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How one row picks its tokens; the values are already validated and defaulted."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: dict[int, float] = {}
    top_logprobs: int | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True, tag="limits"):
    """What the engine may hold now; sent before Load, at every poll and at every change.

    `budget_bytes` bounds MLX's active plus cached memory: what the engine holds, what is
    promised to its requests, and one margin. 0 means no limit. Without `prefill_turn` it
    decodes but feeds no prompt, because another engine of the node is feeding one.
    `wired_limit_bytes` is what MLX may keep wired from now on; None leaves it as it is.
    """

    budget_bytes: int = 0
    margin_bytes: int = 0
    min_chunk_tokens: int = 32
    prefill_turn: bool = True
    wired_limit_bytes: int | None = None


class CacheSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the prefix cache keeps blocks, and how much of each tier it may take.

    An empty `directory` means no disk tier, `hot_bytes` 0 no tier in RAM, `retention_seconds` 0
    for ever. `memory_file` remembers what the disk's own failures taught; empty for none.
    """

    directory: str = ""
    memory_file: str = ""
    size_bytes: int = 0
    leave_free_bytes: int = 0
    durable: bool = False
    hot_bytes: int = 0
    block_tokens: int = 256
    retention_seconds: float = 0.0


class CacheLimits(msgspec.Struct, frozen=True, kw_only=True, tag="cache_limits"):
    """What the prefix cache may keep from now on, at any time; shrinking evicts at once."""

    size_bytes: int = 0
    leave_free_bytes: int = 0
    hot_bytes: int = 0
    retention_seconds: float = 0.0


class Load(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """First command: load the weights and warm up. `chunk_tokens` 0 lets the engine choose.

    `shape` is the JSON of a `sizing.shape.ModelShape`, for the forward gate's predictions;
    empty switches the predictions off. `wired_limit_bytes` 0 keeps nothing wired.
    `model_fingerprint` names the content of weights and config; empty means no prefix cache.
    With `drafts` a row that decodes alone says several tokens in a pass where its text repeats.
    """

    model_path: str
    chunk_tokens: int = 0
    max_running: int = 32
    cache_limit_bytes: int = 0
    shape: str = ""
    fused: bool = False
    wired_limit_bytes: int = 0
    limits: Limits = Limits()
    model_fingerprint: str = ""
    cache: CacheSettings = CacheSettings()
    drafts: bool = True


class Generate(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """Run one row. `prompt` is never empty; stop tokens end it and are not reported as text.

    A higher `priority` goes first. `deadline_seconds` count from receipt; 0 is no deadline.
    The last `said_tokens` of the prompt are what this answer has said already, elsewhere: they
    count as output for penalties, and a seeded row has drawn them. Rows share cached prefixes
    only with rows of the same `extra_keys`.
    """

    request_id: str
    prompt: list[int]
    max_tokens: int
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    sampling: SamplingParams = SamplingParams()
    priority: int = 0
    deadline_seconds: float = 0.0
    extra_keys: list[str] = []
    said_tokens: int = 0


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """Stop a row at the next step; it ends with Finished(reason="cancelled")."""

    request_id: str


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """End a row for the node's sake; it ends with Failed and these words."""

    request_id: str
    code: str
    message: str
    retryable: str = "elsewhere"


class Reclaim(msgspec.Struct, frozen=True, kw_only=True, tag="reclaim"):
    """Give MLX's cached buffers back to the system at the next step boundary."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """The answer to an Ask; when granted, the new budget came in a Limits before it."""

    request_id: str
    granted: bool
    retryable: str = "later"
    message: str = ""


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag="shutdown"):
    """Fail what is in flight, free the arrays and exit 0."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """First event: the process is up; MLX is not imported yet."""

    pid: int
    protocol: int = 1


class Loading(msgspec.Struct, frozen=True, kw_only=True, tag="loading"):
    """How far the weights are."""

    done_bytes: int
    total_bytes: int


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """The engine takes requests. Zero sizes mean the device does not tell.

    `cache_fingerprint` is the root of its prefix chains; empty without a prefix cache.
    """

    device: str
    mlx_version: str
    chunk_tokens: int
    active_bytes: int
    recommended_working_set_bytes: int = 0
    memory_bytes: int = 0
    max_buffer_bytes: int = 0
    cache_fingerprint: str = ""


class LoadFailed(msgspec.Struct, frozen=True, kw_only=True, tag="load_failed"):
    """The engine cannot serve this model and will exit; `message` is for people."""

    message: str


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen token's log-probability and the best alternatives, sorted."""

    logprob: float
    top: list[tuple[int, float]] = []


class Tokens(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """New tokens of one row, in order; `logprobs` runs parallel when asked for."""

    request_id: str
    ids: list[int]
    logprobs: list[TokenLogprobs] = []


class PrefillProgress(msgspec.Struct, frozen=True, kw_only=True, tag="prefill"):
    """How much of one row's prompt has been fed, and how long this chunk took."""

    request_id: str
    done_tokens: int
    total_tokens: int
    chunk_tokens: int
    seconds: float


class ChunkMeasured(msgspec.Struct, frozen=True, kw_only=True, tag="chunk"):
    """What one prefill chunk really took, beside the prediction.

    Units: bytes over the memory held when the chunk began. `context_tokens` counts the prompt
    tokens held after it; `predicted_bytes` is 0 without a shape.
    """

    request_id: str
    chunk_tokens: int
    context_tokens: int
    predicted_bytes: int
    actual_bytes: int


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """A row's next chunk does not fit the budget even when shrunk; it waits for an Answer."""

    request_id: str
    more_bytes: int


class Restored(msgspec.Struct, frozen=True, kw_only=True, tag="restored"):
    """A row starts from cached blocks: its first `tokens` need no feeding.

    Units: `seconds` is what reading the blocks and building the row's cache took.
    """

    request_id: str
    tokens: int
    hot_blocks: int
    ssd_blocks: int
    seconds: float


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """A row ended: reason is stop, length or cancelled.

    `cached_tokens` of the prompt came from the prefix cache.
    """

    request_id: str
    reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """A row ended without an answer; `code` is one of manifests.errors.Code."""

    request_id: str
    code: str
    message: str
    retryable: str = "elsewhere"


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat"):
    """Once a second from the socket's thread: has the step loop moved, and what memory holds.

    `steps` counts step-loop turns. It grows while idle too, so a frozen count with
    `step_seconds` rising means a stuck step. `waiting` requests wait outside; of the `running`
    ones, `prefilling` still have prompt to feed and `held` of those wait for an Answer.
    `over_budget_bytes` is what decode has grown past the budget, which ends no row by itself. Of
    the `drafted_tokens` that were verified since the load, `accepted_tokens` came true.
    """

    steps: int
    step_seconds: float
    running: int
    waiting: int
    active_bytes: int
    cache_bytes: int
    peak_bytes: int
    prefilling: int = 0
    held: int = 0
    prefill_turn: bool = True
    over_budget_bytes: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


class CacheReport(msgspec.Struct, frozen=True, kw_only=True, tag="cache_report"):
    """The prefix cache's state, about once a second when anything changed.

    `counters` holds KvCacheStats by field name. The disk's figures are of all engines that share
    its directory. An empty `state_reason` means all is well.
    """

    fingerprint: str
    hot_used_bytes: int = 0
    hot_capacity_bytes: int = 0
    hot_blocks: int = 0
    ssd_used_bytes: int = 0
    ssd_blocks: int = 0
    queued_bytes: int = 0
    state_reason: str = ""
    state_message: str = ""
    writable: bool = False
    counters: dict[str, float] = {}


class PrefixesHeld(msgspec.Struct, frozen=True, kw_only=True, tag="prefixes"):
    """Digests of the blocks a row can start from: the full set first, then what changed."""

    full: bool
    added: list[bytes] = []
    removed: list[bytes] = []


Command = Load | Limits | CacheLimits | Generate | Cancel | Abort | Reclaim | Answer | Shutdown
Event = (
    Hello
    | Loading
    | Loaded
    | LoadFailed
    | Tokens
    | PrefillProgress
    | ChunkMeasured
    | Ask
    | Restored
    | Finished
    | Failed
    | Heartbeat
    | CacheReport
    | PrefixesHeld
)

encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_event = msgspec.msgpack.Decoder(Event).decode
