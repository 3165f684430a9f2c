"""Plain text: readable characters, sentences, terms."""
