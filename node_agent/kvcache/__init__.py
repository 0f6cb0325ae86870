"""The tiers of the KV cache, without MLX: names, formats, RAM and disk.

Engine processes call it. It knows bytes, digests and layer kinds, and no arrays.
"""
