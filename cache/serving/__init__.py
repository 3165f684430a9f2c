"""What may be asked of an engine, wherever it runs, and engines in processes of their own."""
