"""Generate answers to prompts: layout, KV memory, attention and the engine. Out of scope: documents."""
