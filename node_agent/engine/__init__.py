"""The engine process: the only place that imports MLX, and its wire."""
