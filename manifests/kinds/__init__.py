"""The declared kinds and the scheme that lists them."""
