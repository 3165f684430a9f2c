"""Prompts in, tokens out: layout, KV memory, attention and the engine. Out of scope: documents."""
