"""The control plane and the gateway: declared state, reconcilers, the fleet's endpoint, the CLI."""
