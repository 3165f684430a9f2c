"""From a question to a recorded answer."""
