"""The next token: sampling and constrained answers; and the text of tokens."""
