"""Which host this process runs on."""

import sys

from node_agent.host.base import Host
from node_agent.host.darwin import DarwinHost
from node_agent.host.linux import LinuxHost


def detect_host() -> Host:
    """Return the host of this platform. Raises OSError where macOS facts cannot be read."""
    return DarwinHost() if sys.platform == "darwin" else LinuxHost()
