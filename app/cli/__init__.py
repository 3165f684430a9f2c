"""The command `warmdesk`."""

import gc

gc.set_threshold(50_000)  # imports make many objects that stay: looking at them takes a sixth of a short command
