"""Bytes: what weights, caches and a prefill need, whether it fits, and what would help."""
