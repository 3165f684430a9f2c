"""A prompt before its forward pass: its texts, token ids and position ids. No tensors."""
