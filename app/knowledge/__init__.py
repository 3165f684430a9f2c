"""Documents in and out: ingestion, warming, neighbours, forgetting, search."""
