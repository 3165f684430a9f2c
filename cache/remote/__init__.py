"""Engines of others: a language model behind an OpenAI-compatible server, asked over HTTP."""
