"""Cuts passages into statements, the parts that an answer is made of."""
