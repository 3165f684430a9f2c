"""The desk as one object, and its parts."""
