"""Remote models: an engine over an OpenAI-compatible server."""
