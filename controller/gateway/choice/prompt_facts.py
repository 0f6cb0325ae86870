"""What a request's prompt is in tokens, and how much of it each endpoint has cached; pure.

Made by `prompts`; read by the demand and, through `CachedPrefixes`, by the decision.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from controller.gateway.nodes.endpoints import EndpointKey, EndpointView
from controller.gateway.nodes.held import Held
from manifests.kinds.engine import Engine
from manifests.wire.prefix_chain import TOKEN_BYTES, ChainRoot, PrefixChain
from manifests.wire.tenant import cache_keys

NO_VARIABLES = b"{}"


@dataclass(frozen=True, slots=True)
class PromptKind:
    """What makes the same body into the same ids: the text files, and the Model's variables."""

    text_fingerprint: str
    variables: bytes = NO_VARIABLES


@dataclass(frozen=True, slots=True)
class Sharing:
    """With whom the request's cached prefixes are shared, as its node will see it."""

    tenant: str = ""
    cache_salt: str = ""
    isolated: bool = False

    def keys(self, endpoint: EndpointView) -> tuple[str, ...]:
        """Return the extra keys of the prompt's chain on an endpoint."""
        isolated = self.isolated or endpoint.cache_isolated
        return cache_keys(self.tenant, self.cache_salt, isolated=isolated)


@dataclass(frozen=True, slots=True)
class PromptFacts:
    """A body's prompts, counted. Units: `tokens` of the longest, `total_tokens` of all.

    `ids` are the longest prompt's, packed. Not `exact`: some endpoint would count otherwise, and
    this is its best estimate.
    """

    tokens: int
    exact: bool
    prompts: int = 1
    total_tokens: int = 0
    ids: bytes = field(default=b"", repr=False)

    @classmethod
    def of(cls, packed: Sequence[bytes]) -> "PromptFacts":
        """Return the facts of packed prompts, of which there is at least one."""
        longest = max(packed, key=len)
        return cls(
            tokens=len(longest) // TOKEN_BYTES,
            exact=True,
            prompts=len(packed),
            total_tokens=sum(len(prompt) for prompt in packed) // TOKEN_BYTES,
            ids=longest,
        )


def plan_kinds(
    endpoints: Sequence[EndpointView], engines: Mapping[str, Engine]
) -> dict[EndpointKey, PromptKind | None]:
    """Return how each endpoint that may get the request makes ids; None where that is unknown."""
    return {
        item.key: _kind(item, engines.get(item.key.engine))
        for item in endpoints
        if item.accepting or item.wakes
    }


def merge_facts(facts: Sequence[PromptFacts | None]) -> PromptFacts | None:
    """Return what holds for all kinds: the longest; exact only when every kind was counted."""
    counted = [item for item in facts if item is not None]
    if not counted:
        return None
    longest = max(counted, key=lambda item: item.tokens)
    return longest if len(counted) == len(facts) else replace(longest, exact=False)


def cached_tokens(held: Collection[bytes], chain: PrefixChain) -> int:
    """Return how many tokens the deepest full block that is held comes to."""
    for index in range(len(chain.digests), 0, -1):
        if chain.digests[index - 1] in held:
            return index * chain.block_tokens
    return 0


class CachedPrefixes(Mapping[EndpointKey, int]):
    """How many of a prompt's tokens each endpoint has, as of the moment it is asked.

    A request that waits is decided on again and again; what nodes hold changes meanwhile. Chains
    are computed once for each root, looked up once for each change of what is held.
    """

    def __init__(
        self,
        ids: Mapping[EndpointKey, bytes],
        keys: Callable[[EndpointKey], tuple[str, ...]],
        find: Callable[[EndpointKey], Held | None],
    ) -> None:
        """Take the packed ids at each endpoint, and where to see its extra keys and what it holds.

        `keys` is asked about endpoints that hold anything.
        """
        self._ids, self._keys, self._find = ids, keys, find
        self._chains: dict[tuple[int, str, tuple[str, ...], int], PrefixChain] = {}
        self._seen: dict[EndpointKey, tuple[Held, int, int]] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[EndpointKey]:
        return iter(self._ids)

    def __getitem__(self, key: EndpointKey) -> int:
        ids, held = self._ids[key], self._find(key)
        if held is None or not held.digests:
            return 0
        seen = self._seen.get(key)
        if seen is not None and seen[0] is held and seen[1] == held.version:
            return seen[2]
        found = cached_tokens(held.digests, self._chain(ids, self._keys(key), held))
        self._seen[key] = (held, held.version, found)
        return found

    def warm(self) -> None:
        """Compute every chain now, in whichever thread; the result is the same as later."""
        for key in self._ids:
            held = self._find(key)
            if held is not None and held.digests:
                self._chain(self._ids[key], self._keys(key), held)

    def _chain(self, ids: bytes, keys: tuple[str, ...], held: Held) -> PrefixChain:
        name = (id(ids), held.fingerprint, keys, held.block_tokens)
        chain = self._chains.get(name)
        if chain is None:
            root = ChainRoot(held.fingerprint, keys)
            chain = PrefixChain.of_packed(root, ids, held.block_tokens)
            self._chains[name] = chain
        return chain


def _kind(endpoint: EndpointView, engine: Engine | None) -> PromptKind | None:
    if engine is None or not endpoint.text_fingerprint:
        return None
    variables = engine.spec.chat_template.variables
    encoded = msgspec.json.encode(variables, order="deterministic") if variables else NO_VARIABLES
    return PromptKind(endpoint.text_fingerprint, encoded)
