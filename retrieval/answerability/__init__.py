"""Decides whether passages answer a question, and which statement does."""
