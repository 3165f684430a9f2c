"""Which token comes next: sampling, constrained answers; and the text of tokens."""
