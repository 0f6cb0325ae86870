"""From a request's body to token ids, for the gateway and the agent alike (ADR 8)."""
