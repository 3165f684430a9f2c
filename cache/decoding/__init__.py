"""The next token: sampling; and the text of tokens."""
