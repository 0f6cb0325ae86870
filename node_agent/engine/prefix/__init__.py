"""Caches cut into blocks and put together again, and where a prompt can go on from."""
