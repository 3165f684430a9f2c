"""Prompts in, tokens out: layout, KV memory, attention and the engine. Knows nothing of documents."""
