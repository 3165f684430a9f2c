"""Documents in, passages out: reading files, splitting, embeddings and the vector index.

Knows nothing of prompts, databases or user interfaces, and never imports `app` or `cache`. Import from the
files themselves (`from retrieval.loaders.load import load`); this one stays empty so that reading a Markdown file
does not load torch.
"""
