"""Readings, ceilings, preflight; pure arithmetic over values."""
