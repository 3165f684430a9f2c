"""The pages of a PDF as lines, tables and blocks."""
