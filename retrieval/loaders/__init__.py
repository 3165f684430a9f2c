"""Loaders for all formats, and the table of formats."""
