"""mlxctl: a client of the REST API only."""
