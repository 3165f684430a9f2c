"""Turns documents into passages that search can find: reading files, splitting, embeddings and indexes.

Never imports `app` or `cache`. Import from the files themselves (`from retrieval.loaders.load import load`). This file
has no imports, so that reading a Markdown file does not load torch.
"""
