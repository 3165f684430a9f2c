"""The number and size of machines for a load: a simulation over a virtual clock."""
