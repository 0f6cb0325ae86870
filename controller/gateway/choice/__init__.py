"""Which node: fit, filters, scores, reservations, and the line when none fits now."""
