"""The HTTP API for programs: OpenAI-compatible routes, JSON routes, metrics."""
