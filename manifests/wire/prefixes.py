"""The stored prefixes that an agent tells gateways of.

`GET /fleet/v1/prefixes` on an agent answers newline-delimited JSON, one `PrefixChanges` a line. For
each engine the first line holds the full set, as far as one line takes it, and later lines what
changed. A line without an engine says only that the link is alive; there is one at least every
`ALIVE_SECONDS`. Whoever connects anew begins with full sets again, so nothing is ever missed.

Names are `manifests.wire.prefix_chain` digests of full blocks from which a prompt can start.
"""

from pydantic import Field

from manifests.kinds.meta import Reported

PREFIXES_PATH = "/fleet/v1/prefixes"
ALIVE_SECONDS = 10.0
# Names in one line, so that no line grows with the disk.
NAMES_PER_LINE = 4096


class PrefixChanges(Reported):
    """What one engine can start from, or how that changed. Digests are in hexadecimal."""

    engine: str = ""
    fingerprint: str = Field(default="", description="of the chain's root; empty: engine gone")
    block_tokens: int = 0
    full: bool = Field(default=False, description="forget what was told of this engine before")
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
