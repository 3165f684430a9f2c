"""Remote models: an engine that uses an OpenAI-compatible server."""
