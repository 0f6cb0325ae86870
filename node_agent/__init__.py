"""The agent of one machine and its engine processes; only `node_agent.engine` imports MLX."""
