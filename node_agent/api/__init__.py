"""HTTP of the agent: OpenAI routes, load stream, health, metrics."""
