/* Products with weights of 4 to 8 bits, as GGUF files have them, and their layout in memory.

Weights stand in blocks of 8 outputs x 32 inputs: for each 16 outputs pairs of blocks, one after another. A vector of 32 bytes holds 4
inputs of 8 outputs, so 4 activations, repeated, meet 8 outputs at once and nothing is added up across a vector. A weight is
`scale * number - low`. Activations are rounded to 8 bits, with a scale for 32 of them.

The plain C version is the oracle of the others, and runs where there are none. */

#pragma once
#include "numbers.h"

#ifdef __F16C__
#include <immintrin.h>
#endif
#if defined(__AVX2__) && defined(__F16C__)
#define PACKED_AVX2
#endif

enum { BLOCK_ROWS = 8, COLUMNS = 32, QUADS = COLUMNS / 4 }; /* of a block; QUADS: vectors of 4 columns */
enum { TOGETHER = 16, AHEAD_BYTES = 2048 }; /* outputs that are multiplied at once; what is asked for before it is needed */
typedef enum { W4 = 3, W5, W6, W8 } Packed;               /* numbers of so many bits, behind the kinds of linear.h */
typedef struct { uint16_t scale[BLOCK_ROWS], low[BLOCK_ROWS]; uint8_t nibbles[128]; } Block4;             /* halves of bytes: see below */
typedef struct { uint16_t scale[BLOCK_ROWS], low[BLOCK_ROWS]; uint8_t nibbles[128], high[32]; } Block5;
typedef struct { uint16_t scale[2][BLOCK_ROWS]; uint8_t nibbles[128], high[64]; } Block6;           /* a scale for 16 columns */
typedef struct { uint16_t scale[BLOCK_ROWS]; int8_t numbers[256]; } Block8;
/* Byte 32 * (quad % 4) + 4 * row + column % 4 of the nibbles has the columns of `quad` in its low half, and those of quad + 4,
   16 columns on, in its high half. Byte 4 * row + column % 4 of the high bits has bit `quad` (W5) or bits 2 * (quad % 4) and the
   next, in the first or second 32 bytes (W6). Numbers of W6 are 32 more than those meant. */

static size_t block_bytes(int kind) {
    return kind == W4 ? sizeof(Block4) : kind == W5 ? sizeof(Block5) : kind == W6 ? sizeof(Block6) : sizeof(Block8);
}

/* 32 activations; sum: scale * the sum of numbers, of all, of the first and of the last 16. */
typedef struct {
    int8_t numbers[COLUMNS];
    float scale, sum, halves[2];
} Rounded;

#ifdef __F16C__
static INLINE float half_to_float(uint16_t h) { return _cvtsh_ss(h); }
static INLINE uint16_t float_to_half(float x) { return _cvtss_sh(x, 0); }
#else
static INLINE float half_to_float(uint16_t h) {
    _Float16 x;
    memcpy(&x, &h, 2);
    return x;
}

static INLINE uint16_t float_to_half(float x) {
    _Float16 h = x;
    uint16_t bits;
    memcpy(&bits, &h, 2);
    return bits;
}
#endif

/* x [32] */
static INLINE void round_block(const float *x, Rounded *to) {
    floats most = {};
    for (int i = 0; i < COLUMNS; i += LANES) most = larger(most, (floats)(*(const ints_in_memory *)(x + i) & 0x7fffffff));
    float highest = 0;
    for (int i = 0; i < LANES; i++) highest = most[i] > highest ? most[i] : highest;
    float factor = highest > 0 ? 127 / highest : 0;
    int halves[2] = {};
    for (int i = 0; i < COLUMNS; i += LANES) {
        floats shifted = *(const floats_in_memory *)(x + i) * factor + 12582912.0f; /* as in exp2_of */
        ints whole = (ints)shifted - 0x4b400000;
        bytes narrow = __builtin_convertvector(whole, bytes);
        memcpy(to->numbers + i, &narrow, LANES);
        for (int k = 0; k < LANES; k++) halves[i / 16] += whole[k];
    }
    to->scale = highest / 127;
    to->sum = to->scale * (halves[0] + halves[1]);
    to->halves[0] = to->scale * halves[0], to->halves[1] = to->scale * halves[1];
}

/* The number of one weight of a block, as it is multiplied, and its scale and low. */
static INLINE int number_of(int kind, const void *block, int row, int column, float *scale, float *low) {
    int quad = column / 4, at = 4 * row + column % 4, shift = quad < 4 ? 0 : 4;
    const Block8 *b8 = block;
    if (kind == W8) {
        *scale = half_to_float(b8->scale[row]), *low = 0;
        return b8->numbers[32 * quad + at];
    }
    if (kind == W6) {
        const Block6 *b = block;
        *scale = half_to_float(b->scale[column / 16][row]), *low = 32 * *scale;
        return (b->nibbles[32 * (quad % 4) + at] >> shift & 15) | (b->high[quad / 4 * 32 + at] >> 2 * (quad % 4) & 3) << 4;
    }
    const Block5 *b = block; /* W4 begins as W5 */
    *scale = half_to_float(b->scale[row]), *low = half_to_float(b->low[row]);
    int number = b->nibbles[32 * (quad % 4) + at] >> shift & 15;
    return kind == W5 ? number | (b->high[at] >> quad & 1) << 4 : number;
}

/* sums [rows][16], from output `to` on, += a block of weights times `rows` blocks of activations, `stride` apart. */
static void plain_block(int kind, const void *block, const Rounded *x, size_t stride, int rows, int to, float (*sums)[TOGETHER]) {
    for (int r = 0; r < BLOCK_ROWS; r++)
        for (int m = 0; m < rows; m++)
            for (int half = 0; half < 2; half++) {
                float scale, low;
                int sum = 0;
                for (int c = 0; c < 16; c++)
                    sum += number_of(kind, block, r, 16 * half + c, &scale, &low) * x[m * stride].numbers[16 * half + c];
                sums[m][to + r] += scale * x[m * stride].scale * sum - low * x[m * stride].halves[half];
            }
}

#ifdef PACKED_AVX2
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define DOT(sum, w, x) _mm256_dpbusd_epi32(sum, w, x)
#elif defined(__AVXVNNI__)
#define DOT(sum, w, x) _mm256_dpbusd_avx_epi32(sum, w, x)
#endif

static INLINE __m256 halves(const uint16_t *from) { return _mm256_cvtph_ps(_mm_loadu_si128((const void *)from)); }
static INLINE __m256i quad_of(const int8_t *x, int quad) { return _mm256_set1_epi32(((const int32_t *)x)[quad]); }

/* The numbers of 4 columns; low halves of bytes for quads 0 to 3. Kind and quad are constants where this is inlined. */
static INLINE __m256i load_quad(int kind, const void *block, int quad) {
    const Block5 *b5 = block;
    const Block6 *b6 = block;
    const __m256i nibble = _mm256_set1_epi8(15);
    if (kind == W8) return _mm256_loadu_si256((const __m256i *)((const Block8 *)block)->numbers + quad);
    const uint8_t *from = (kind == W6 ? b6->nibbles : b5->nibbles) + 32 * (quad % 4);
    __m256i w = _mm256_loadu_si256((const void *)from);
    w = _mm256_and_si256(quad < 4 ? w : _mm256_srli_epi16(w, 4), nibble);
    if (kind == W5) {
        __m256i high = _mm256_loadu_si256((const void *)b5->high);
        high = quad <= 4 ? _mm256_slli_epi16(high, 4 - quad) : _mm256_srli_epi16(high, quad - 4);
        w = _mm256_or_si256(w, _mm256_and_si256(high, _mm256_set1_epi8(16)));
    }
    if (kind == W6) {
        __m256i high = _mm256_loadu_si256((const void *)(b6->high + quad / 4 * 32));
        high = quad % 4 < 3 ? _mm256_slli_epi16(high, 4 - 2 * (quad % 4)) : _mm256_srli_epi16(high, 2);
        w = _mm256_or_si256(w, _mm256_and_si256(high, _mm256_set1_epi8(48)));
    }
    return w;
}

#define EACH_GROUP _Pragma("GCC unroll 2") for (int g = 0; g < 2; g++)
#define EACH_ROW _Pragma("GCC unroll 4") for (int m = 0; m < rows; m++)
/* The compiler would else add up later, which takes more registers than there are: it was a third slower. */
#define NOW(vector) __asm__("" : "+x"(vector))

/* As `plain_block`, for a pair of blocks and up to 4 rows: 4 activations, repeated, meet 16 outputs. Sums
   of products fit into 16 bits for 8 quads of 4 bits (8 * 2 * 15 * 127), 4 of 5, 2 of 6 and 1 of 8. Kind and rows are constants
   where this is inlined. */
static INLINE void add_blocks(int kind, const char *pair, const Rounded *x, size_t stride, int rows, __m256 (*acc)[4]) {
    const int fit = kind == W4 ? 8 : kind == W5 ? 4 : kind == W6 ? 2 : 1, group = kind == W6 ? 4 : 8; /* with one scale */
#pragma GCC unroll 2
    for (int first = 0; first < QUADS; first += group) {
        __m256i whole[2][4], part[2][4], w[2], size[2];
        EACH_GROUP EACH_ROW whole[g][m] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int quad = first; quad < first + group; quad++) {
            EACH_GROUP {
                w[g] = load_quad(kind, pair + g * block_bytes(kind), quad), size[g] = kind == W8 ? _mm256_abs_epi8(w[g]) : w[g];
                NOW(size[g]);
            }
            EACH_ROW {
                __m256i four = quad_of(x[m * stride].numbers, quad);
                EACH_GROUP {
                    __m256i signs = kind == W8 ? _mm256_sign_epi8(four, w[g]) : four;
#ifdef DOT
                    whole[g][m] = DOT(whole[g][m], size[g], signs);
#else
                    __m256i product = _mm256_maddubs_epi16(size[g], signs);
                    part[g][m] = quad % fit ? _mm256_add_epi16(part[g][m], product) : product;
                    NOW(part[g][m]);
                    if (quad % fit == fit - 1) {
                        __m256i wide = _mm256_madd_epi16(part[g][m], _mm256_set1_epi16(1));
                        whole[g][m] = quad - first < fit ? wide : _mm256_add_epi32(whole[g][m], wide);
                    }
#endif
                }
            }
        }
        EACH_GROUP {
            const Block6 *b6 = (const void *)(pair + g * block_bytes(kind));
            __m256 scale = halves(b6->scale[kind == W6 ? first / 4 : 0]);
            EACH_ROW acc[g][m] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[g][m]),
                                                 _mm256_mul_ps(scale, _mm256_set1_ps(x[m * stride].scale)), acc[g][m]);
            if (kind == W8) continue;
            __m256 low = kind == W6 ? _mm256_mul_ps(scale, _mm256_set1_ps(32)) : halves(b6->scale[1]); /* `low` of W4 and W5 */
            EACH_ROW {
                float sum = kind == W6 ? x[m * stride].halves[first / 4] : x[m * stride].sum;
                acc[g][m] = _mm256_fnmadd_ps(low, _mm256_set1_ps(sum), acc[g][m]);
            }
        }
    }
}

/* sums [rows][16] = 16 outputs of so many inputs times up to 4 rows of activations. */
static INLINE void multiply_16(int kind, const char *weights, const Rounded *x, int blocks, int rows, float (*sums)[TOGETHER]) {
    const size_t bytes = 2 * block_bytes(kind);
    __m256 acc[2][4];
    EACH_GROUP EACH_ROW acc[g][m] = _mm256_setzero_ps();
    for (int b = 0; b < blocks; b++, weights += bytes) {
        if (rows == 1)
            for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(weights + AHEAD_BYTES + at);
        add_blocks(kind, weights, x + b, blocks, rows, acc);
    }
    EACH_GROUP EACH_ROW _mm256_storeu_ps(sums[m] + g * BLOCK_ROWS, acc[g][m]);
}
#undef EACH_GROUP
#undef EACH_ROW
#else
static INLINE void multiply_16(int kind, const char *weights, const Rounded *x, int blocks, int rows, float (*sums)[TOGETHER]) {
    memset(sums, 0, rows * sizeof *sums);
    for (int b = 0; b < 2 * blocks; b++)
        plain_block(kind, weights + b * block_bytes(kind), x + b / 2, blocks, rows, b % 2 * BLOCK_ROWS, sums);
}
#endif

/* sums [rows][16] = 16 outputs, whose blocks are `weights`, times rows of activations [rows, blocks]. */
static void multiply_packed(int kind, const char *weights, const Rounded *x, int blocks, int rows, float (*sums)[TOGETHER]) {
#define MULTIPLY(KIND) \
    if (kind == KIND) { \
        int m = 0; \
        for (; m + 4 <= rows; m += 4) multiply_16(KIND, weights, x + (size_t)m * blocks, blocks, 4, sums + m); \
        for (; m + 2 <= rows; m += 2) multiply_16(KIND, weights, x + (size_t)m * blocks, blocks, 2, sums + m); \
        for (; m < rows; m++) multiply_16(KIND, weights, x + (size_t)m * blocks, blocks, 1, sums + m); \
    }
    MULTIPLY(W4)
    MULTIPLY(W5)
    MULTIPLY(W6)
    MULTIPLY(W8)
#undef MULTIPLY
}
