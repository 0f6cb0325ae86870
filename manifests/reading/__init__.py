"""From text to validated objects and back, with every error at once and where it stands."""
