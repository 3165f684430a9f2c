"""Prompt programs: Python functions as PML schemas."""
