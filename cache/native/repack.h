/* Converts the blocks of a GGUF file to blocks of packed.h, without a copy in floating point. */

#pragma once
#include "packed.h"

/* Tensor types, with their numbers in GGUF files. */
enum { F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, BF16 = 30 };

static int packed_kind(int type) {
    switch (type) {
    case Q4_0: case Q4_1: case Q4_K: return W4;
    case Q5_0: case Q5_1: case Q5_K: return W5;
    case Q6_K: return W6;
    case Q8_0: return W8;
    default: return 0;
    }
}

/* Bytes of 32 weights in a file; for Q4_K, Q5_K and Q6_K, of 256 weights. */
static size_t file_bytes(int type) {
    switch (type) {
    case F32: return 128;
    case F16: case BF16: return 64;
    case Q4_0: return 18;
    case Q4_1: return 20;
    case Q5_0: return 22;
    case Q5_1: return 24;
    case Q8_0: return 34;
    case Q4_K: return 144;
    case Q5_K: return 176;
    default: return 210;
    }
}

static size_t row_bytes(int type, long columns) {
    return columns / (type >= Q4_K && type <= Q6_K ? 256 : COLUMNS) * file_bytes(type);
}

/* 32 weights of a row: weight i is scale[i / 16] * numbers[i] - low. Stored numbers of Q6_K are 32 above the real ones,
   those of 5 bits 16 above; numbers of Q8_0 are signed. */
typedef struct {
    uint8_t numbers[COLUMNS];
    float scale[2], low;
} Unpacked;

static float half_at(const uint8_t *at) {
    uint16_t bits;
    memcpy(&bits, at, 2);
    return half_to_float(bits);
}

/* Unpacks 32 weights of a row. index: which ones. O3: without it, GCC does not vectorise this. */
__attribute__((optimize("O3"))) static Unpacked unpack(int type, const uint8_t *row, int index) {
    Unpacked u = {};
    int is_k = type >= Q4_K, sub = index % 8;
    const uint8_t *at = row + (is_k ? index / 8 : index) * file_bytes(type), *high = NULL, *nibbles = NULL;
    float scale = half_at(at);
    u.scale[0] = u.scale[1] = scale;
    if (type == Q6_K) { /* each half (128 weights): 64 bytes of low 4 bits, 32 bytes of high 2 bits */
        int half = sub / 4, quarter = sub % 4;
        const int8_t *scales = (const int8_t *)at + 192;
        for (int i = 0; i < COLUMNS; i++) {
            int low = at[64 * half + 32 * (quarter % 2) + i] >> (quarter < 2 ? 0 : 4) & 15;
            u.numbers[i] = low | (at[128 + 32 * half + i] >> 2 * quarter & 3) << 4;
        }
        for (int i = 0; i < 2; i++) u.scale[i] = half_at(at + 208) * scales[2 * sub + i];
        return u;
    }
    if (type == Q8_0) {
        memcpy(u.numbers, at + 2, COLUMNS);
        return u;
    }
    if (is_k) { /* scales and lows of 6 bits: 4 of each in 6 bits of bytes, the later ones' upper bits in the 2 above */
        const uint8_t *q = at + 4;
        int six = sub < 4 ? q[sub] & 63 : (q[sub + 4] & 15) | q[sub - 4] >> 6 << 4;
        int low = sub < 4 ? q[sub + 4] & 63 : q[sub + 4] >> 4 | q[sub] >> 6 << 4;
        u.scale[0] = u.scale[1] = scale * six, u.low = half_at(at + 2) * low - (type == Q5_K ? 16 * u.scale[0] : 0);
        nibbles = at + (type == Q5_K ? 48 : 16) + sub / 2 * 32;
        for (int i = 0; i < COLUMNS; i++) {
            u.numbers[i] = nibbles[i] >> 4 * (sub % 2) & 15;
            if (type == Q5_K) u.numbers[i] |= (at[16 + i] >> sub & 1) << 4;
        }
        return u;
    }
    int has_low = type == Q4_1 || type == Q5_1, is_5 = type == Q5_0 || type == Q5_1;
    u.low = (has_low ? -half_at(at + 2) : scale * (is_5 ? 16 : 8)) - scale * (is_5 ? 16 : 0);
    high = at + (has_low ? 4 : 2), nibbles = high + (is_5 ? 4 : 0);
    for (int i = 0; i < 16; i++) u.numbers[i] = nibbles[i] & 15, u.numbers[i + 16] = nibbles[i] >> 4;
    uint32_t bits = 0;
    if (is_5) memcpy(&bits, high, 4);
    for (int i = 0; i < COLUMNS; i++) u.numbers[i] |= (bits >> i & 1) << 4;
    return u;
}

/* Packs weights of 8 rows into a block. A word has four numbers, one in each byte. */
static INLINE void pack(int kind, const Unpacked *rows, void *block) {
    Block5 *b5 = block; /* W4 begins like W5 */
    Block6 *b6 = block;
    uint32_t *words = kind == W8 ? (void *)((Block8 *)block)->numbers : kind == W6 ? (void *)b6->nibbles : (void *)b5->nibbles;
    uint32_t *high = words + 4 * BLOCK_ROWS; /* after the nibbles */
    memset(block, 0, block_bytes(kind));
    for (int row = 0; row < BLOCK_ROWS; row++) {
        const Unpacked *u = rows + row;
        if (kind == W6) b6->scale[0][row] = float_to_half(u->scale[0]), b6->scale[1][row] = float_to_half(u->scale[1]);
        else ((uint16_t *)block)[row] = float_to_half(u->scale[0]);
        if (kind == W4 || kind == W5) b5->low[row] = float_to_half(u->low);
        for (int quad = 0; quad < QUADS; quad++) {
            uint32_t four;
            memcpy(&four, u->numbers + 4 * quad, 4);
            if (kind == W8) words[BLOCK_ROWS * quad + row] = four;
            else words[BLOCK_ROWS * (quad % 4) + row] |= (four & 0x0f0f0f0f) << (quad < 4 ? 0 : 4);
            if (kind == W5) high[row] |= (four >> 4 & 0x01010101) << quad;
            if (kind == W6) high[quad / 4 * BLOCK_ROWS + row] |= (four >> 4 & 0x03030303) << 2 * (quad % 4);
        }
    }
}

/* Returns the bytes that a packed matrix needs; 0: its type cannot be packed. */
size_t warmdesk_packed_bytes(int type, long rows, long columns) {
    int kind = packed_kind(type);
    return kind ? (size_t)(rows / BLOCK_ROWS) * (columns / COLUMNS) * block_bytes(kind) : 0;
}

/* Packs the rows of a matrix of a file. turned: head size, if the rows of each head are stored in pairs (queries and
   keys of Llama files): pairs are separated into halves again. 0: the order stays. */
void warmdesk_repack(int type, const uint8_t *from, long rows, long columns, int turned, int threads, char *to) {
    int kind = packed_kind(type), blocks = columns / COLUMNS;
#pragma omp parallel for num_threads(threads)
    for (long first = 0; first < rows; first += BLOCK_ROWS) {
        const uint8_t *sources[BLOCK_ROWS];
        for (int i = 0; i < BLOCK_ROWS; i++) {
            long row = first + i, in_head = turned ? row % turned : 0;
            if (turned) row += in_head % (turned / 2) * 2 + in_head / (turned / 2) - in_head;
            sources[i] = from + row * row_bytes(type, columns);
        }
        char *block = to + (first / TOGETHER * 2 * blocks + first % TOGETHER / BLOCK_ROWS) * block_bytes(kind);
        for (int b = 0; b < blocks; b++, block += 2 * block_bytes(kind)) {
            Unpacked unpacked[BLOCK_ROWS];
            for (int i = 0; i < BLOCK_ROWS; i++) unpacked[i] = unpack(type, sources[i], b);
#define PACK(KIND) if (kind == KIND) pack(KIND, unpacked, block);
            PACK(W4) PACK(W5) PACK(W6) PACK(W8)
#undef PACK
        }
    }
}

/* Converts one row, such as an embedding, to floating point. to [columns] */
void warmdesk_unpack_row(int type, const uint8_t *row, long columns, float *to) {
    if (type == F32) memcpy(to, row, columns * sizeof(float));
    for (long i = 0; i < columns && (type == F16 || type == BF16); i++) {
        uint16_t half;
        memcpy(&half, row + 2 * i, 2);
        to[i] = type == F16 ? half_to_float(half) : from_bf16(half);
    }
    for (long b = 0; b < columns / COLUMNS && packed_kind(type); b++) {
        Unpacked u = unpack(type, row, b);
        int more = packed_kind(type) == W6 ? 32 : packed_kind(type) == W5 ? 16 : 0;
        for (int i = 0; i < COLUMNS; i++)
            *to++ = u.scale[i / 16] * (type == Q8_0 ? (int8_t)u.numbers[i] : u.numbers[i] - more) - u.low;
    }
}

/* Multiplies and adds numbers of 8 bits in all threads, `steps` times, at the CPU's full speed, for measurements.
   Returns the number of operations; 0: not supported on this CPU. */
double warmdesk_multiply_8bit(int threads, long steps) {
#ifdef PACKED_AVX2
#pragma omp parallel num_threads(threads)
    {
        __m256i sums[12] = {};
        for (long step = 0; step < steps; step++)
#pragma GCC unroll 12
            for (int i = 0; i < 12; i++) __asm__ volatile("vpmaddubsw %0,%0,%0" : "+x"(sums[i]));
    }
    return 64.0 * 12 * steps * threads;
#else
    return 0 * steps * threads;
#endif
}

/* Multiplies activations [rows, columns] with packed weights [outputs, columns], for tests and measurements. is_plain:
   use the plain version. to [rows, outputs] */
void warmdesk_multiply(int type, const char *weights, long outputs, const float *x, long rows, long columns, int is_plain,
                       float *to) {
    int kind = packed_kind(type), blocks = columns / COLUMNS;
    Rounded *rounded = malloc(sizeof(Rounded) * rows * blocks);
    for (long i = 0; i < rows * blocks; i++) round_block(x + i * COLUMNS, rounded + i);
    memset(to, 0, sizeof *to * rows * outputs);
    for (long first = 0; first < outputs; first += TOGETHER) {
        const char *at = weights + first / BLOCK_ROWS * blocks * block_bytes(kind);
        for (int b = 0; b < 2 * blocks && is_plain; b++)
            plain_block(kind, at + b * block_bytes(kind), rounded + b / 2, blocks, rows, to + first + b % 2 * BLOCK_ROWS, outputs);
        if (!is_plain) multiply_packed(kind, at, rounded, blocks, rows, to + first, outputs);
    }
    free(rounded);
}
