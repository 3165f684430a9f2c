"""The interface of an engine, and engines in separate processes."""
