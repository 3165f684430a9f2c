"""Code in C for what Python is too slow for: passes of few rows on a processor."""
