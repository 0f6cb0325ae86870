"""What the controller, the agents and the command line agree on.

Owns the declared kinds, their validation and loading, the memory estimator and the wire
shapes. It imports the standard library, pydantic and yaml only, and nothing of ours, so both
sides of the fleet compute the same answer from the same text.
"""
