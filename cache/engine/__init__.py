"""Answer requests: admission, scheduling, encoding and the engine thread."""
