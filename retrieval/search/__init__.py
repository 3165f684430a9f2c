"""Embeddings, vector index, keyword index, and the retriever that joins them."""
