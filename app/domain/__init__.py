"""Plain values that all rooms exchange, settings and errors. No input or output but the settings file."""
