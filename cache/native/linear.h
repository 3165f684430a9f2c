/* Linear layers: packed weights times rows of activations.

Weights are packed in panels of LANES outputs: for each pair of inputs as many pairs of bfloat16, or of float32
where a weight is no bfloat16. Everything is summed in float32.
Weights of 8 bits have a scale for each output and INT8_GROUP inputs, and so has each row of activations, which is rounded
to 8 bits just before.
Threads share the outputs, and where there are many rows also these, so that a group of panels is read from memory once
and stays in the cache while it meets one tile of rows after another. */

#pragma once
#include "numbers.h"
#include "team.h"

enum { OUTPUTS = 64, GROUP = OUTPUTS / LANES, INT8_GROUP = 32 };
enum { TILE = 16, TILES = 4 }; /* TILES: how many a thread takes at once */
/* For each sum of a block of a tile: `panels` and `rows` are constants where this is inlined. */
#define EACH_SUM \
    _Pragma("GCC unroll 16") for (int p = 0; p < panels; p++) _Pragma("GCC unroll 16") for (int m = 0; m < rows; m++)
#define AHEAD 2048 /* bytes of weights to ask for before they are needed */

typedef enum { BFLOAT16, FLOAT32, INT8 } Kind; /* of weights */
typedef enum { STORE, ADD, GATE } Use;         /* what becomes of a product */

typedef struct {
    const void *weights; /* panels */
    const float *bias;   /* NULL: none */
    int32_t kind, inputs, outputs; /* outputs: a multiple of OUTPUTS */
} Linear;

/* Activations stand in tiles of TILE rows, the last one with what is left; in a tile in pairs, one row after another:
   [inputs / 2, rows of the tile, 2]. */
static INLINE int rows_of_tile(int tile, int rows) { return rows - tile * TILE < TILE ? rows - tile * TILE : TILE; }

/* Stores LANES activations of one row of a tile, the first of which are `to`. */
static INLINE void scatter(floats x, activation *to, int rows) {
    union { words all; struct { activation of[2]; } pairs[LANES / 2]; } bits = {activations_of(x)};
    for (int i = 0; i < LANES / 2; i++) memcpy(to + (size_t)i * rows * 2, bits.pairs + i, 2 * sizeof(activation));
}

/* Stores LANES activations of one row, from input `input` on. */
static INLINE void store_activations(floats x, activation *to, int row, int rows, int inputs, int input) {
    int tile = row / TILE, in_tile = rows_of_tile(tile, rows);
    scatter(x, to + (size_t)tile * TILE * inputs + (size_t)input * in_tile + row % TILE * 2, in_tile);
}

static INLINE weight_pair load_pair(const char *panel, int pair, Kind kind) {
#ifndef PAIRS
    if (kind == FLOAT32)
        return (weight_pair){((const floats_in_memory *)panel)[2 * pair], ((const floats_in_memory *)panel)[2 * pair + 1]};
#endif
    (void)kind;
    return pair_of(((const words_in_memory *)panel)[pair]);
}

/* result[p][m] = panel p times row m of x, where `stride` rows stand. Kind, panels and rows are constants where this is
   inlined. */
static INLINE void multiply(const char *weights, size_t panel_bytes, const activation *x, int stride, int pairs, Kind kind,
                            int panels, int rows, floats result[][TILE]) {
    floats total[GROUP][TILE]; /* of constant size, and every loop over it unrolled: else it is not kept in registers */
    EACH_SUM total[p][m] = (floats){};
    for (int k = 0; k < pairs; k++, x += 2 * stride)
#pragma GCC unroll 8
        for (int p = 0; p < panels; p++) {
            weight_pair w = load_pair(weights + p * panel_bytes, k, kind);
            if (rows > 1) __builtin_prefetch(weights + p * panel_bytes + (size_t)k * LANES * 4 + AHEAD);
#pragma GCC unroll 16
            for (int m = 0; m < rows; m++) total[p][m] = add_products(total[p][m], w, x + 2 * m);
        }
    EACH_SUM result[p][m] = total[p][m];
}

/* GROUP panels times the rows of a tile, in blocks whose sums fill the registers. */
static INLINE void multiply_group(const char *weights, size_t panel_bytes, const activation *x, int pairs, Kind kind,
                                  int rows, floats result[][TILE]) {
#define BLOCK(M, P) \
    for (; row + M <= rows; row += M) \
        for (int p = 0; p < GROUP; p += P) \
            multiply(weights + p * panel_bytes, panel_bytes, x + row * 2, rows, pairs, kind, P, M, \
                     (floats(*)[TILE]) & result[p][row]);
    int row = 0;
#ifdef __AVX512F__
    BLOCK(16, 1)
    BLOCK(8, 2)
    BLOCK(4, 4)
    BLOCK(2, 4)
    BLOCK(1, GROUP)
#else
    BLOCK(6, 2)
    BLOCK(4, 2)
    BLOCK(2, 4)
    BLOCK(1, GROUP)
#endif
#undef BLOCK
}

/* A tile of activations in 8 bits: numbers [inputs / 4, rows, 4]; scales, and -128 times the sums of numbers,
   [inputs / INT8_GROUP, rows]. */
typedef struct {
    int8_t *numbers;
    float *scales;
    int32_t *sums;
} Rounded;

static INLINE floats magnitude(floats x) { return (floats)((ints)x & 0x7fffffff); }

static void round_activations(const activation *x, int inputs, int rows, Rounded to) {
    for (int group = 0; group < inputs / INT8_GROUP; group++)
        for (int row = 0; row < rows; row++) {
            float numbers[INT8_GROUP] __attribute__((aligned(64)));
            const activation *from = x + ((size_t)group * INT8_GROUP * rows + row * 2);
            for (int i = 0; i < INT8_GROUP; i += 2, from += 2 * rows) {
#ifdef PAIRS
                numbers[i] = from_bf16(from[0]), numbers[i + 1] = from_bf16(from[1]);
#else
                numbers[i] = from[0], numbers[i + 1] = from[1];
#endif
            }
            floats most = {};
            for (int i = 0; i < INT8_GROUP; i += LANES) most = larger(most, magnitude(*(floats_in_memory *)(numbers + i)));
            float highest = 0;
            for (int i = 0; i < LANES; i++) highest = most[i] > highest ? most[i] : highest;
            float factor = highest > 0 ? 127 / highest : 0;
            ints sum_of = {};
            for (int i = 0; i < INT8_GROUP; i += LANES) {
                floats shifted = *(floats_in_memory *)(numbers + i) * factor + 12582912.0f; /* as in exp2_of */
                ints whole = (ints)shifted - 0x4b400000;
                sum_of += whole;
                bytes narrow = __builtin_convertvector(whole, bytes);
                for (int four = 0; four < LANES / 4; four++) {
                    int8_t *at = to.numbers + (((size_t)group * INT8_GROUP + i) / 4 + four) * rows * 4 + row * 4;
                    memcpy(at, (const int8_t *)&narrow + 4 * four, 4);
                }
            }
            int total = 0;
            for (int i = 0; i < LANES; i++) total += sum_of[i];
            to.scales[group * rows + row] = highest / 127;
            to.sums[group * rows + row] = -128 * total;
        }
}

/* Adds the products of four weights, from 0 to 255, with four numbers. */
static INLINE ints add_fours(ints acc, words w, const int8_t *x) {
#ifdef __AVX512VNNI__
    return (ints)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, _mm512_set1_epi32(*(const int *)x));
#else
    for (int i = 0; i < 4; i++) acc += (ints)(w >> (8 * i) & 255) * x[i];
    return acc;
#endif
}

/* As `multiply`. A panel: its weights plus 128, [inputs / 4, LANES, 4], then bfloat16 scales of pairs of groups. */
static INLINE void multiply_int8(const char *weights, size_t panel_bytes, Rounded x, int stride, int inputs, int panels,
                                 int rows, floats result[][TILE]) {
    floats total[GROUP][TILE];
    EACH_SUM total[p][m] = (floats){};
    for (int group = 0; group < inputs / INT8_GROUP; group++, x.scales += stride, x.sums += stride) {
        ints sums[GROUP][TILE];
        EACH_SUM sums[p][m] = (ints){} + x.sums[m];
#pragma GCC unroll 8
        for (int k = 0; k < INT8_GROUP / 4; k++, x.numbers += 4 * stride)
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++) {
                const char *at = weights + p * panel_bytes + (group * (INT8_GROUP / 4) + k) * LANES * 4;
                words w = *(const words_in_memory *)at;
                if (rows > 1) __builtin_prefetch(at + AHEAD);
#pragma GCC unroll 8
                for (int m = 0; m < rows; m++) sums[p][m] = add_fours(sums[p][m], w, x.numbers + 4 * m);
            }
#pragma GCC unroll 8
        for (int p = 0; p < panels; p++) {
            words pair = ((const words_in_memory *)(weights + p * panel_bytes + (size_t)inputs * LANES))[group / 2];
            floats scale = (floats)(group % 2 ? pair & HIGH : pair << 16);
#pragma GCC unroll 16
            for (int m = 0; m < rows; m++) total[p][m] += __builtin_convertvector(sums[p][m], floats) * (scale * x.scales[m]);
        }
    }
    EACH_SUM result[p][m] = total[p][m];
}

static INLINE void multiply_group_int8(const char *weights, size_t panel_bytes, Rounded x, int inputs, int rows,
                                       floats result[][TILE]) {
#define BLOCK(M, P) \
    for (; row + M <= rows; row += M) \
        for (int p = 0; p < GROUP; p += P) \
            multiply_int8(weights + p * panel_bytes, panel_bytes, \
                          (Rounded){x.numbers + 4 * row, x.scales + row, x.sums + row}, rows, inputs, P, M, \
                          (floats(*)[TILE]) & result[p][row]);
    int row = 0;
#ifdef __AVX512F__
    BLOCK(8, 1)
    BLOCK(4, 2)
#else
    BLOCK(4, 1)
#endif
    BLOCK(2, 2)
    BLOCK(1, 4)
#undef BLOCK
}

static size_t rounded_bytes(int inputs, int rows) { return (size_t)rows * (inputs + inputs / INT8_GROUP * 8); }

/* A tile among `rows` rows in 8 bits in memory of `rounded_bytes`. */
static INLINE Rounded rounded_tile(void *memory, int tile, int inputs, int rows) {
    size_t groups = inputs / INT8_GROUP, before = (size_t)tile * TILE;
    float *scales = memory;
    int32_t *sums = (int32_t *)(scales + groups * rows);
    return (Rounded){(int8_t *)(sums + groups * rows) + before * inputs, scales + before * groups, sums + before * groups};
}

/* Products of a group of panels with a tile that begins with row `first`. out: float [rows, outputs], stored or added to;
   or, for gate_up, activations of outputs / 2. */
static INLINE void use_products(const Linear *l, floats result[][TILE], int group, int first, int in_tile, int rows, Use use,
                                void *out) {
    for (int m = 0; m < in_tile; m++)
        for (int p = 0; p < GROUP; p++) {
            int at = (group * GROUP + p) * LANES, row = first + m;
            floats value = result[p][m];
            if (l->bias) value += *(const floats_in_memory *)(l->bias + at);
            result[p][m] = value;
            floats_in_memory *to = (floats_in_memory *)((float *)out + (size_t)row * l->outputs + at);
            if (use == STORE) *to = value;
            if (use == ADD) *to += value;
            if (use == GATE && p % 2) { /* panels of gate and up stand in turn */
                floats gate = result[p - 1][m];
                value *= gate / (1.0f + exp2_of(-larger(gate * 1.44269504f, (floats){} - 126.0f)));
                store_activations(value, out, row, rows, l->outputs / 2, at / LANES / 2 * LANES);
            }
        }
}

static INLINE void linear_of(const Linear *l, Kind kind, const activation *x, int rows, Use use, void *out, void *scratch,
                             Team *team) {
    int inputs = l->inputs, groups = l->outputs / LANES / GROUP, tiles = (rows + TILE - 1) / TILE;
    size_t panel_bytes = (size_t)inputs * LANES * (kind == BFLOAT16 ? 2 : 4);
    if (kind == INT8) {
        panel_bytes = (size_t)inputs * LANES + (size_t)(inputs / INT8_GROUP + 1) / 2 * LANES * 4;
        for (int tile = 0; tile < tiles; tile++)
            round_activations(x + (size_t)tile * TILE * inputs, inputs, rows_of_tile(tile, rows),
                              rounded_tile(scratch, tile, inputs, rows));
    }
    int parts = (tiles + TILES - 1) / TILES;
    FOR_PART(task, (long)groups * parts, team) {
        int group = task / parts, first = task % parts * TILES;
        const char *weights = (const char *)l->weights + group * GROUP * panel_bytes;
        for (int tile = first; tile < tiles && tile < first + TILES; tile++) {
            int in_tile = rows_of_tile(tile, rows);
            floats result[GROUP][TILE];
            if (kind == INT8)
                multiply_group_int8(weights, panel_bytes, rounded_tile(scratch, tile, inputs, rows), inputs, in_tile, result);
            else
                multiply_group(weights, panel_bytes, x + (size_t)tile * TILE * inputs, inputs / 2, kind, in_tile, result);
            use_products(l, result, group, tile * TILE, in_tile, rows, use, out);
        }
    }
}

/* Threads share the work. out: see `use_products`. scratch: memory of this thread, `rounded_bytes` */
static void linear(const Linear *l, const activation *x, int rows, Use use, void *out, void *scratch, Team *team) {
    if (l->kind == BFLOAT16) linear_of(l, BFLOAT16, x, rows, use, out, scratch, team);
    if (l->kind == INT8) linear_of(l, INT8, x, rows, use, out, scratch, team);
#ifndef PAIRS
    if (l->kind == FLOAT32) linear_of(l, FLOAT32, x, rows, use, out, scratch, team);
#endif
}
