"""One file a format, and the table of formats."""
