"""Who this agent is: an identity that a copied data directory does not carry along.

Owns the identity file. The identity is made of a random id in the data directory, the file's
inode and the machine's id, so a clone on another machine or a copied directory is another
agent, while restarts, upgrades and reboots are the same one.
"""

import hashlib
import re
import uuid
from pathlib import Path

_FILE = "node-identity"


def load_identity(data_dir: Path, machine_id: str) -> str:
    """Return this agent's identity, making the file on first use. Raises OSError."""
    path = data_dir / _FILE
    if not path.exists():
        path.write_text(f"{uuid.uuid4()}\n", encoding="ascii")
        path.chmod(0o600)
    seed = path.read_text(encoding="ascii").strip()
    text = f"{seed}|{path.stat().st_ino}|{machine_id}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def node_name_of(hostname: str) -> str:
    """Return a valid node name made from a host name; empty when nothing of it is usable."""
    first = hostname.lower().removesuffix(".local")
    return re.sub(r"[^a-z0-9.]+", "-", first).strip("-.")[:63].strip("-.")
