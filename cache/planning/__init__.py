"""How many machines of which size a load takes: a simulation over a virtual clock."""
