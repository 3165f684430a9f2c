"""Check whether the passages support a sentence of an answer."""
