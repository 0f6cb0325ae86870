"""What the gateway knows of the fleet: its engines, their reports, prefixes and health."""
