"""Other programs to compare with, and the prompts that all of them get."""
