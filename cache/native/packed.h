/* Products with the weights of GGUF files (4 to 8 bits), and their layout in memory.

Weights are in blocks of 8 outputs x 32 inputs; every 16 outputs are a sequence of block pairs. A vector of 32 bytes has
4 inputs of 8 outputs, so 4 activations, repeated, are multiplied with 8 outputs at once, and no vector is summed
across. A weight is `scale * number - low`. Activations are rounded to 8 bits, with one scale per 32.

For many rows, weights are unpacked to bytes once, a few blocks at a time so that they stay in the L1 cache. The plain C
version is the reference for the others, and runs if the CPU supports none of them. */

#pragma once
#include "numbers.h"

#ifdef __F16C__
#include <immintrin.h>
#endif
#if defined(__AVX2__) && defined(__F16C__)
#define PACKED_AVX2
#ifdef __AVX512VNNI__
#define PACKED_AVX512
#endif
#endif

enum { BLOCK_ROWS = 8, COLUMNS = 32, QUADS = COLUMNS / 4 }; /* sizes of a block; QUADS: groups of 4 columns */
enum { TOGETHER = 16, AHEAD_BYTES = 2048 }; /* outputs multiplied together; prefetch distance */
enum { MANY = 16, WIDE = 24 };            /* fewest rows for unpacked weights; block pairs at a time */
typedef enum { W4 = 3, W5, W6, W8 } Packed;               /* by bits; values after the kinds of linear.h */
typedef struct { uint16_t scale[BLOCK_ROWS], low[BLOCK_ROWS]; uint8_t nibbles[128]; } Block4;             /* nibbles: see below */
typedef struct { uint16_t scale[BLOCK_ROWS], low[BLOCK_ROWS]; uint8_t nibbles[128], high[32]; } Block5;
typedef struct { uint16_t scale[2][BLOCK_ROWS]; uint8_t nibbles[128], high[64]; } Block6;           /* a scale for 16 columns */
typedef struct { uint16_t scale[BLOCK_ROWS]; int8_t numbers[256]; } Block8;
/* Byte 32 * (quad % 4) + 4 * row + column % 4 of the nibbles has columns of `quad` (0 to 3) in its low half, columns of
   quad + 4 in its high half. Byte 4 * row + column % 4 of the high bits has bit `quad` (W5), or bits 2 * (quad % 4)
   and the next, in the first or second 32 bytes (W6). Stored numbers of W5 and W6 are 16 and 32 above the real ones. */

static size_t block_bytes(int kind) {
    return kind == W4 ? sizeof(Block4) : kind == W5 ? sizeof(Block5) : kind == W6 ? sizeof(Block6) : sizeof(Block8);
}

/* 32 activations. sum: scale * the sum of numbers. starts: initial values of sums of products, because stored numbers
   of W5 and W6 are too high. By half (W6: first and last 16 columns), then by pair of each 4 columns. */
typedef struct {
    int8_t numbers[COLUMNS];
    float scale, sum;
    int16_t starts[2][2];
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

/* Rounds 32 activations to 8 bits. */
static INLINE void round_block(const float *x, Rounded *to) {
    floats most = {};
    for (int i = 0; i < COLUMNS; i += LANES) most = larger(most, (floats)(*(const ints_in_memory *)(x + i) & 0x7fffffff));
    float highest = 0;
    for (int i = 0; i < LANES; i++) highest = most[i] > highest ? most[i] : highest;
    float factor = highest > 0 ? 127 / highest : 0;
#ifdef PACKED_AVX2
    __m256i whole[4], fours[2];
    for (int i = 0; i < 4; i++) /* as in exp2_of */
        whole[i] = _mm256_sub_epi32((__m256i)_mm256_fmadd_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(factor), _mm256_set1_ps(12582912.0f)),
                                    _mm256_set1_epi32(0x4b400000));
    for (int i = 0; i < 2; i++) fours[i] = _mm256_packs_epi32(whole[2 * i], whole[2 * i + 1]);
    __m256i numbers = _mm256_packs_epi16(fours[0], fours[1]);
    numbers = _mm256_permutevar8x32_epi32(numbers, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)to->numbers, numbers);
    __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(16), numbers);
    pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0x4e));
    pairs = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0xb1)));
    memcpy(to->starts[0], &pairs, 4), memcpy(to->starts[1], (char *)&pairs + 16, 4);
#else
    ints halves[2] = {};
    for (int i = 0; i < COLUMNS; i += LANES) {
        floats shifted = *(const floats_in_memory *)(x + i) * factor + 12582912.0f; /* as in exp2_of */
        ints whole = (ints)shifted - 0x4b400000;
        bytes narrow = __builtin_convertvector(whole, bytes);
        memcpy(to->numbers + i, &narrow, LANES);
        halves[i / 16] += whole;
    }
    memset(to->starts, 0, sizeof to->starts);
    for (int k = 0; k < 2 * LANES; k++) to->starts[k / LANES][k / 2 % 2] -= 16 * halves[k / LANES][k % LANES];
#endif
    to->scale = highest / 127;
    to->sum = to->scale * ((to->starts[0][0] + to->starts[0][1] + to->starts[1][0] + to->starts[1][1]) / -16);
}

/* Returns the real number of one weight of a block, and sets its scale and low. */
static INLINE int number_of(int kind, const void *block, int row, int column, float *scale, float *low) {
    int quad = column / 4, at = 4 * row + column % 4, shift = quad < 4 ? 0 : 4;
    const Block8 *b8 = block;
    if (kind == W8) {
        *scale = half_to_float(b8->scale[row]), *low = 0;
        return b8->numbers[32 * quad + at];
    }
    if (kind == W6) {
        const Block6 *b = block;
        *scale = half_to_float(b->scale[column / 16][row]), *low = 0;
        return ((b->nibbles[32 * (quad % 4) + at] >> shift & 15) | (b->high[quad / 4 * 32 + at] >> 2 * (quad % 4) & 3) << 4) - 32;
    }
    const Block5 *b = block; /* W4 begins like W5 */
    *scale = half_to_float(b->scale[row]), *low = half_to_float(b->low[row]);
    int number = b->nibbles[32 * (quad % 4) + at] >> shift & 15;
    return kind == W5 ? (number | (b->high[at] >> quad & 1) << 4) - 16 : number;
}

/* Adds a block of weights times `rows` activation blocks, `blocks` apart, to 8 sums of each row. sums [rows, stride] */
static void plain_block(int kind, const void *block, const Rounded *x, size_t blocks, int rows, float *sums, size_t stride) {
    for (int r = 0; r < BLOCK_ROWS; r++)
        for (int m = 0; m < rows; m++) {
            const Rounded *with = x + m * blocks;
            float scale = 0, low = 0, total = 0;
            for (int half = 0; half < 2; half++) {
                int sum = 0;
                for (int c = 16 * half; c < 16 * half + 16; c++) sum += number_of(kind, block, r, c, &scale, &low) * with->numbers[c];
                total += scale * with->scale * sum;
            }
            sums[m * stride + r] += total - low * with->sum;
        }
}

#ifdef PACKED_AVX2
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define DOT(sum, w, x) _mm256_dpbusd_epi32(sum, w, x)
#elif defined(__AVXVNNI__)
#define DOT(sum, w, x) _mm256_dpbusd_avx_epi32(sum, w, x)
#endif

static INLINE __m256 halves(const void *from) { return _mm256_cvtph_ps(_mm_loadu_si128(from)); }

/* Returns a vector that repeats 4 bytes. */
static INLINE __m256i repeated(const void *from) {
    int32_t four;
    memcpy(&four, from, 4);
    return _mm256_set1_epi32(four);
}

/* Loads the stored numbers of 4 columns: quads 0 to 3 are low halves of bytes. kind, quad: constants where inlined. */
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
/* Makes the compiler add at once. Later additions need more registers than the CPU has: the code was a third slower. */
#define NOW(vector) __asm__("" : "+x"(vector))

/* A pair of unpacked blocks. scales: the first 32 bytes of each: for W4 and W5 scale and low, for W6 both scales */
typedef struct {
    uint8_t numbers[QUADS][2][32];
    float scales[2][2][BLOCK_ROWS];
} Wide;

static INLINE void widen(int kind, const char *pairs, int count, Wide *to) {
    for (; count--; to++, pairs += 2 * block_bytes(kind))
        EACH_GROUP {
            const char *block = pairs + g * block_bytes(kind);
#pragma GCC unroll 8
            for (int quad = 0; quad < QUADS; quad++) {
                __m256i w = load_quad(kind, block, quad);
                if (kind == W8) w = _mm256_xor_si256(w, _mm256_set1_epi8(-128)); /* 128 more: unsigned */
                _mm256_storeu_si256((__m256i *)to->numbers[quad][g], w);
            }
            for (int i = 0; i < 2; i++) _mm256_storeu_ps(to->scales[i][g], halves(block + 16 * i));
        }
}

static INLINE __m256 load_scale(int kind, int is_wide, const void *pair, int g, int index) {
    if (is_wide) return _mm256_loadu_ps(((const Wide *)pair)->scales[index][g]);
    return halves((const char *)pair + g * block_bytes(kind) + 16 * index);
}

/* Like `plain_block`, for a pair of blocks and up to 4 rows: 4 activations, repeated, times 16 outputs. The final sums
   fit into 16 bits, even if intermediate sums overflow: 8 quads of 4 bits (8 * 2 * 15 * 127) or of 5 bits with a sign
   (8 * 2 * 16 * 127), 4 quads of 6 bits (4 * 2 * 32 * 127), but only one of 8 bits. kind, is_wide, rows: constants
   where this is inlined. */
static INLINE void add_blocks(int kind, int is_wide, const char *pair, const Rounded *x, size_t blocks, int rows, __m256 (*acc)[4]) {
    const int group = kind == W6 ? 4 : 8, has_start = kind == W5 || kind == W6; /* group: quads with the same scale */
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 2
    for (int first = 0; first < QUADS; first += group) {
        __m256i sums[2][4], w[2], size[2];
        EACH_ROW {
            __m256i start = has_start ? _mm256_add_epi16(repeated(x[m * blocks].starts[first / 4]), repeated(x[m * blocks].starts[kind == W5 ? 1 : first / 4])) : _mm256_setzero_si256();
#ifdef DOT
            start = _mm256_madd_epi16(start, ones);
#endif
            EACH_GROUP sums[g][m] = start;
        }
#pragma GCC unroll 8
        for (int quad = first; quad < first + group; quad++) {
            EACH_GROUP {
                w[g] = is_wide ? _mm256_loadu_si256((const __m256i *)((const Wide *)pair)->numbers[quad][g])
                               : load_quad(kind, pair + g * block_bytes(kind), quad);
                size[g] = kind == W8 ? _mm256_abs_epi8(w[g]) : w[g];
                NOW(size[g]);
            }
            EACH_ROW {
                __m256i four = repeated(x[m * blocks].numbers + 4 * quad);
                EACH_GROUP {
                    __m256i signs = kind == W8 ? _mm256_sign_epi8(four, w[g]) : four;
#ifdef DOT
                    sums[g][m] = DOT(sums[g][m], size[g], signs);
#else
                    __m256i product = _mm256_maddubs_epi16(size[g], signs);
                    int is_new = quad == first && !has_start;
                    if (kind == W8) product = _mm256_madd_epi16(product, ones), sums[g][m] = is_new ? product : _mm256_add_epi32(sums[g][m], product);
                    else sums[g][m] = is_new ? product : _mm256_add_epi16(sums[g][m], product);
                    NOW(sums[g][m]);
                    if (kind != W8 && !is_wide && quad == first + group - 1) sums[g][m] = _mm256_madd_epi16(sums[g][m], ones);
#endif
                }
            }
        }
        EACH_GROUP {
            __m256 scale = load_scale(kind, is_wide, pair, g, first / 4);
            EACH_ROW {
#ifndef DOT
                if (kind != W8 && is_wide) sums[g][m] = _mm256_madd_epi16(sums[g][m], ones);
#endif
                acc[g][m] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[g][m]), _mm256_mul_ps(scale, _mm256_set1_ps(x[m * blocks].scale)), acc[g][m]);
            }
            if (kind == W6 || kind == W8) continue;
            __m256 low = load_scale(kind, is_wide, pair, g, 1);
            EACH_ROW acc[g][m] = _mm256_fnmadd_ps(low, _mm256_set1_ps(x[m * blocks].sum), acc[g][m]);
        }
    }
}

/* Adds `count` pairs of blocks times up to 4 rows of activations to 16 sums of each row. sums [rows, stride] */
static INLINE void multiply_16(int kind, int is_wide, const char *pairs, int count, const Rounded *x, size_t blocks, int rows,
                               float *sums, size_t stride) {
    const size_t bytes = is_wide ? sizeof(Wide) : 2 * block_bytes(kind);
    __m256 acc[2][4];
    EACH_GROUP EACH_ROW acc[g][m] = _mm256_loadu_ps(sums + m * stride + g * BLOCK_ROWS);
    for (int b = 0; b < count; b++, pairs += bytes) {
        if (rows == 1)
            for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(pairs + AHEAD_BYTES + at);
        for (int m = 4; m < 8 && rows == 4; m++) __builtin_prefetch(x + m * blocks + b);
        add_blocks(kind, is_wide, pairs, x + b, blocks, rows, acc);
    }
    EACH_GROUP EACH_ROW _mm256_storeu_ps(sums + m * stride + g * BLOCK_ROWS, acc[g][m]);
}
#undef EACH_GROUP
#undef EACH_ROW

#ifdef PACKED_AVX512
enum { EVERY_KIND = 1, WIDE_ROWS = 12 }; /* WIDE_ROWS: their sums stay in registers */
#define EACH_ROW _Pragma("GCC unroll 12") for (int m = 0; m < rows; m++)
/* Like `multiply_16`, for unpacked blocks of any kind: one vector has 4 inputs of 16 outputs. */
static INLINE void multiply_wide(int kind, const Wide *pair, int count, const Rounded *x, size_t blocks, int rows, float *sums, size_t stride) {
    const int group = kind == W6 ? 4 : 8; /* quads with the same scale */
    __m512 acc[WIDE_ROWS];
    EACH_ROW acc[m] = _mm512_loadu_ps(sums + m * stride);
    for (; count--; pair++, x++) {
#pragma GCC unroll 2
        for (int first = 0; first < QUADS; first += group) {
            __m512i total[WIDE_ROWS];
            EACH_ROW {
                const int16_t *of_half = x[m * blocks].starts[first / 4], *starts = x[m * blocks].starts[0];
                int start = kind == W6 ? 2 * (of_half[0] + of_half[1]) : starts[0] + starts[1] + starts[2] + starts[3];
                total[m] = _mm512_set1_epi32(kind == W4 ? 0 : kind == W8 ? 8 * start : start);
            }
#pragma GCC unroll 8
            for (int quad = first; quad < first + group; quad++) {
                __m512i w = _mm512_loadu_si512(pair->numbers[quad]);
                EACH_ROW {
                    int32_t four;
                    memcpy(&four, x[m * blocks].numbers + 4 * quad, 4);
                    total[m] = _mm512_dpbusd_epi32(total[m], w, _mm512_set1_epi32(four));
                }
            }
            __m512 scale = _mm512_loadu_ps(pair->scales[first / 4][0]);
            EACH_ROW acc[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(total[m]), _mm512_mul_ps(scale, _mm512_set1_ps(x[m * blocks].scale)), acc[m]);
        }
        if (kind == W6 || kind == W8) continue;
        __m512 low = _mm512_loadu_ps(pair->scales[1][0]);
        EACH_ROW acc[m] = _mm512_fnmadd_ps(low, _mm512_set1_ps(x[m * blocks].sum), acc[m]);
    }
    EACH_ROW _mm512_storeu_ps(sums + m * stride, acc[m]);
}
#undef EACH_ROW
#else
enum { EVERY_KIND = 0 };
#endif

/* Like `multiply_packed`, for one kind. */
static INLINE void multiply_kind(int kind, const char *weights, const Rounded *x, size_t blocks, int rows, float *sums, size_t stride) {
    int m = 0;
    _Alignas(64) Wide wide[WIDE];
    for (int first = 0, count; first < (int)blocks && rows >= MANY && (EVERY_KIND || kind == W5 || kind == W6); first += count) {
        count = (int)blocks - first < WIDE ? (int)blocks - first : WIDE;
        widen(kind, weights + first * 2 * block_bytes(kind), count, wide);
        m = 0;
#ifdef PACKED_AVX512
        for (; m + WIDE_ROWS <= rows; m += WIDE_ROWS)
            multiply_wide(kind, wide, count, x + m * blocks + first, blocks, WIDE_ROWS, sums + m * stride, stride);
        for (; m + 4 <= rows; m += 4)
            multiply_wide(kind, wide, count, x + m * blocks + first, blocks, 4, sums + m * stride, stride);
#else
        for (; m + 4 <= rows; m += 4)
            multiply_16(kind, 1, (const char *)wide, count, x + m * blocks + first, blocks, 4, sums + m * stride, stride);
#endif
    }
#define ROWS(N) for (; m + N <= rows; m += N) \
        multiply_16(kind, 0, weights, blocks, x + m * blocks, blocks, N, sums + m * stride, stride)
    ROWS(4);
    ROWS(2);
    ROWS(1);
#undef ROWS
}
#elif defined(__ARM_FEATURE_DOTPROD)
#include "packed_neon.h"
#else
static void multiply_kind(int kind, const char *weights, const Rounded *x, size_t blocks, int rows, float *sums, size_t stride) {
    for (size_t b = 0; b < 2 * blocks; b++)
        plain_block(kind, weights + b * block_bytes(kind), x + b / 2, blocks, rows, sums + b % 2 * BLOCK_ROWS, stride);
}
#endif

/* Adds the weights of 16 outputs times activations [rows, blocks] to 16 sums of each row. sums [rows, stride] */
static void multiply_packed(int kind, const char *weights, const Rounded *x, size_t blocks, int rows, float *sums, size_t stride) {
    if (kind == W4) multiply_kind(W4, weights, x, blocks, rows, sums, stride);
    if (kind == W5) multiply_kind(W5, weights, x, blocks, rows, sums, stride);
    if (kind == W6) multiply_kind(W6, weights, x, blocks, rows, sums, stride);
    if (kind == W8) multiply_kind(W8, weights, x, blocks, rows, sums, stride);
}
