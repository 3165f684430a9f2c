"""Requests in, tokens out: admission, scheduling, encoding, sampling and the engine thread."""
