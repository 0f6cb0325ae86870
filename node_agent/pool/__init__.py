"""Engine processes and their state machine; one loop owns them."""
