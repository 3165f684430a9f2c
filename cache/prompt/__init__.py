"""A prompt before it is run: its texts, token ids and position ids. No tensors."""
