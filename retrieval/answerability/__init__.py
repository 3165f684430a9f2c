"""Whether passages answer a question, and which statement does."""
