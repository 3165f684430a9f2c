/* Products of packed weights of all kinds against the plain version: random numbers, and the largest and the smallest. */

#include "repack.h"

static double off(int kind, int numbers, int rows) {
    enum { BLOCKS = 13, MOST = 64 };
    size_t bytes = MOST / BLOCK_ROWS * BLOCKS * block_bytes(kind), each = block_bytes(kind);
    char *weights = malloc(bytes);
    Rounded *x = malloc(sizeof *x * rows * BLOCKS);
    float *found = calloc(rows * MOST, sizeof *found), *plain = calloc(rows * MOST, sizeof *plain), values[COLUMNS];
    for (size_t i = 0; i < bytes; i++) weights[i] = numbers == 0 ? rand() : kind != W8 ? 255 * (numbers == 1) : numbers == 1 ? 127 : -127;
    for (size_t i = 0; i < bytes / each * 16; i++)
        if (kind != W8 || i % 16 < 8) ((uint16_t *)(weights + i / 16 * each))[i % 16] = float_to_half(0.001f + rand() % 100 * 1e-5f);
    for (int i = 0; i < rows * BLOCKS; i++) {
        for (int c = 0; c < COLUMNS; c++) values[c] = numbers ? 1 - i % 2 * 2 : rand() % 2001 * 0.001f - 1;
        round_block(values, x + i);
    }
    double squares = 0, all = 0;
    for (int first = 0; first < MOST; first += TOGETHER) {
        const char *at = weights + first / BLOCK_ROWS * BLOCKS * each;
        multiply_packed(kind, at, x, BLOCKS, rows, found + first, MOST);
        for (int b = 0; b < 2 * BLOCKS; b++)
            plain_block(kind, at + b * each, x + b / 2, BLOCKS, rows, plain + first + b % 2 * BLOCK_ROWS, MOST);
    }
    for (int i = 0; i < rows * MOST; i++) squares += pow(found[i] - plain[i], 2), all += pow(plain[i], 2);
    free(weights), free(x), free(found), free(plain);
    return sqrt(squares / all);
}

int main(void) {
    for (int kind = W4; kind <= W8; kind++)
        for (int numbers = 0; numbers < 3; numbers++)
            for (int rows = 1; rows < 20; rows += rows < 8 ? 1 : 4)
                if (!(off(kind, numbers, rows) < 1e-6)) return 10 * kind + numbers;
    return 0;
}
