"""Tools above the engine: advice on prompts, grouping of requests, dry runs."""
