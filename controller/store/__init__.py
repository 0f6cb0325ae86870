"""Versioned storage with compare-and-swap and watch; one backend a file."""
