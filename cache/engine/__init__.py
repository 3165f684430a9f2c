"""Requests in, tokens out: admission, scheduling, encoding and the engine thread."""
