"""Where keys and values live: arena, allocator, store, disk tier, prefix tree and content addresses."""
