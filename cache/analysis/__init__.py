"""Tools that use the engine: advice on prompts, grouping of requests, dry runs."""
