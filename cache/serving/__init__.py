"""The interface of an engine, and engines in processes of their own."""
