"""The documents: ingest, encode, find, delete."""
