"""Shapes that cross the wire between agents, controllers and clients."""
