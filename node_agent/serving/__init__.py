"""A request from token ids to text: streams, stop strings, choices."""
