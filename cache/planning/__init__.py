"""A simulation of the number and size of machines for a load, with a virtual clock."""
