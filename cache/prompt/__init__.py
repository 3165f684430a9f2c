"""What a prompt is before it is run: its texts, its token ids and its position ids. No tensors."""
