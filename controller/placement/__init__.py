"""Which node takes which engine, and why not; pure."""
