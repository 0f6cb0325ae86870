"""What runs next and how much of it: waiting rows, pace, lockstep, and the memory gate."""
