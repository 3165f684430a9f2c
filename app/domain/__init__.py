"""Plain values that all subpackages exchange, settings and errors. No input or output except the settings file."""
