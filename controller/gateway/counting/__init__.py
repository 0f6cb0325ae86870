"""Prompts to token ids, with each model's own tokenizer in a process of its own."""
