"""One attempt at a node: the connection, the relay of its answer, and what a failure means."""
