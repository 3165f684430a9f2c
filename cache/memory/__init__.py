"""Memory for keys and values: KV pool, store, host and disk tiers, prefix tree and content addresses."""
