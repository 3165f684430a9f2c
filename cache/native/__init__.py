"""C code for a model's passes on a CPU, because Python is too slow for them; and sizes that this code requires."""

OUTPUTS = 64  # as in linear.h: a layer's number of outputs is a multiple of it
MOST_RANK = 64  # as in linear.h: maximum rank of an adapter
BLOCK_ROWS, BLOCK_COLUMNS = 8, 32  # as in packed.h: outputs of a block, and inputs with a common scale
