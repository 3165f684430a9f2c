"""The desk as one object, and what it is made of."""
