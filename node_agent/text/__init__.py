"""Tokenizer, chat template, incremental detokenization."""
