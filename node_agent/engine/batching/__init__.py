"""Forward passes over rows: prefill, joint decode, sampling and their arrays."""
