"""Documents as blocks of text, and how they are cut into passages."""
