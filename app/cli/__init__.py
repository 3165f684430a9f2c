"""The command `warmdesk`."""

import gc

COLLECTED = gc.get_threshold()  # Python's own
gc.set_threshold(50_000)  # imports make many objects that stay: checking them takes a sixth of a short command
