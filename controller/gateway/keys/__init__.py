"""Who may ask, for what, how often and how much: keys, limits, budgets and their usage."""
