"""Finds files and reads them in a separate process."""
