"""C code for a model's passes on a CPU, for which Python is too slow; and the sizes that it relies on."""

OUTPUTS = 64  # as in linear.h: a layer's number of outputs is a multiple of it
MOST_RANK = 64  # as in linear.h: of an adapter
BLOCK_ROWS, BLOCK_COLUMNS = 8, 32  # as in packed.h: outputs of a block, and inputs with a common scale
