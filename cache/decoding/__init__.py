"""Sampling of the next token, and the text of tokens."""
