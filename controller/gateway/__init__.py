"""The OpenAI endpoint: filter, score, pick, forward."""
