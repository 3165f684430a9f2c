"""Many clients, and more modules than memory holds."""
