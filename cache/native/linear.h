/* Linear layers: packed weights times rows of activations.

Weights in bfloat16 are packed in panels of LANES outputs: for each pair of inputs, LANES pairs of numbers. Sums are
float32.
Weights of 4 to 8 bits have the layout of packed.h.
A task is some outputs and at most TILES tiles of rows. A group of panels stays in the cache while it is multiplied with
one tile of rows after another. */

#pragma once
#include "packed.h"

enum { OUTPUTS = 64, GROUP = OUTPUTS / LANES };
enum { TILE = 16, TILES = 4 }; /* TILE: rows of a tile. TILES: maximum tiles of a task */
enum { MOST_RANK = 64, LOWS = 3 * TILE * MOST_RANK / COLUMNS }; /* MOST_RANK: of adapters. LOWS: see `find_lows` */
/* Loops over the sums of a block of a tile. `panels` and `rows` are constants where this is inlined. */
#define EACH_SUM \
    _Pragma("GCC unroll 16") for (int p = 0; p < panels; p++) _Pragma("GCC unroll 16") for (int m = 0; m < rows; m++)
#define AHEAD 2048 /* prefetch distance of weights in bytes */

typedef enum { BFLOAT16, PACKED } Kind; /* of weights */
typedef enum { STORE, ADD, GATE } Use;           /* use of a product, see `use_products` */

/* Packed weights of one kind. outputs: a multiple of OUTPUTS; for gate and up, of 32. An adapter adds the product of
   two W8 matrices: `down` with `rank` outputs, `up` with `rank` inputs. rank: a multiple of COLUMNS; 0: no adapter */
typedef struct {
    const char *weights, *down, *up;
    int32_t kind, outputs, rank;
} Part;

typedef struct {
    const void *weights; /* panels */
    const float *bias;   /* NULL: none */
    int32_t kind, inputs, outputs; /* outputs: a multiple of OUTPUTS */
    int32_t is_gelu;               /* activation of gate and up: GELU, else SiLU */
    Part parts[3];                 /* if packed: queries, keys and values; or gate and up */
} Linear;

/* Activations for packed weights are blocks of 32, row by row. Others are in tiles of TILE rows; the last tile has the
   remaining rows. Layout of a tile: [inputs / 2, rows of the tile, 2]. */
static INLINE int rows_of_tile(int tile, int rows) { return rows - tile * TILE < TILE ? rows - tile * TILE : TILE; }

/* Stores LANES activations of one row of a tile, from `to` on. */
static INLINE void scatter(floats x, activation *to, int rows) {
    union { words all; struct { activation of[2]; } pairs[LANES / 2]; } bits = {activations_of(x)};
    for (int i = 0; i < LANES / 2; i++) memcpy(to + (size_t)i * rows * 2, bits.pairs + i, 2 * sizeof(activation));
}

/* Stores `count` activations (a multiple of 32) of one row, from input `input` on, for weights of a kind. */
static INLINE void store_activations(const float *x, int count, Kind kind, void *to, int row, int rows, int inputs, int input) {
    if (kind == PACKED) {
        Rounded *blocks = (Rounded *)to + ((size_t)row * inputs + input) / COLUMNS;
        for (int i = 0; i < count; i += COLUMNS) round_block(x + i, blocks + i / COLUMNS);
        return;
    }
    int tile = row / TILE, in_tile = rows_of_tile(tile, rows);
    activation *first = (activation *)to + (size_t)tile * TILE * inputs + (size_t)input * in_tile + row % TILE * 2;
    for (int i = 0; i < count; i += LANES)
        scatter(*(const floats_in_memory *)(x + i), first + (size_t)i * in_tile, in_tile);
}

/* result[m][p] = panel p times row m of x, a tile of `stride` rows. panels, rows: constants where this is inlined. */
static INLINE void multiply(const char *weights, size_t panel_bytes, const activation *x, int stride, int pairs,
                            int panels, int rows, floats result[][GROUP]) {
    floats total[GROUP][TILE]; /* stays in registers only with a constant size and unrolled loops */
    EACH_SUM total[p][m] = (floats){};
    for (int k = 0; k < pairs; k++, x += 2 * stride)
#pragma GCC unroll 8
        for (int p = 0; p < panels; p++) {
            weight_pair w = pair_of(((const words_in_memory *)(weights + p * panel_bytes))[k]);
            if (rows > 1) __builtin_prefetch(weights + p * panel_bytes + (size_t)k * LANES * 4 + AHEAD);
#pragma GCC unroll 16
            for (int m = 0; m < rows; m++) total[p][m] = add_products(total[p][m], w, x + 2 * m);
        }
    EACH_SUM result[m][p] = total[p][m];
}

/* Multiplies GROUP panels with the rows of a tile, in blocks whose sums fill the registers. */
static INLINE void multiply_group(const char *weights, size_t panel_bytes, const activation *x, int pairs,
                                  int rows, floats result[][GROUP]) {
#define BLOCK(M, P) \
    for (; row + M <= rows; row += M) \
        for (int p = 0; p < GROUP; p += P) \
            multiply(weights + p * panel_bytes, panel_bytes, x + row * 2, rows, pairs, P, M, \
                     (floats(*)[GROUP]) & result[row][p]);
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

/* Computes the adapters' products with `down` for the rows of a tile: [3, rows, rank / COLUMNS], by part. */
static void find_lows(const Linear *l, const Rounded *x, int rows, Rounded *lows) {
    int blocks = l->inputs / COLUMNS;
    for (int part = 0; part < 3; part++, lows += TILE * MOST_RANK / COLUMNS) {
        const Part *of = l->parts + part;
        float whole[TILE][MOST_RANK] = {};
        for (int r = 0; r < of->rank; r += TOGETHER)
            multiply_packed(W8, of->down + (size_t)r / BLOCK_ROWS * blocks * sizeof(Block8), x, blocks, rows, whole[0] + r, MOST_RANK);
        for (int i = 0; i < rows * (of->rank / COLUMNS); i++)
            round_block(whole[i / (of->rank / COLUMNS)] + i % (of->rank / COLUMNS) * COLUMNS, lows + i);
    }
}

/* Like `multiply_group`, for group `group` of packed weights and the rows of some tiles. */
static INLINE void multiply_group_packed(const Linear *l, int group, Use use, const Rounded *x, const Rounded *lows, int rows,
                                         floats result[][GROUP]) {
    int blocks = l->inputs / COLUMNS;
    memset(result, 0, rows * sizeof *result);
    for (int at = 0; at < OUTPUTS; at += TOGETHER) {
        int part = use == GATE ? at / 32 : 0, output = use == GATE ? group * 32 + at % 32 : group * OUTPUTS + at;
        for (; use != GATE && output >= l->parts[part].outputs; part++) output -= l->parts[part].outputs;
        const Part *of = l->parts + part;
        float *to = (float *)result + at;
        multiply_packed(of->kind, of->weights + (size_t)output / BLOCK_ROWS * blocks * block_bytes(of->kind), x, blocks, rows, to, OUTPUTS);
        int ranks = of->rank / COLUMNS;
        const char *up = of->up + (size_t)output / BLOCK_ROWS * ranks * sizeof(Block8);
        for (int tile = 0; ranks && tile * TILE < rows; tile++)
            multiply_packed(W8, up, lows + tile * LOWS + part * TILE * MOST_RANK / COLUMNS, ranks, rows_of_tile(tile, rows),
                            to + tile * TILE * OUTPUTS, OUTPUTS);
    }
}

/* Writes the products of a group of panels with some rows from `first` on. out: for STORE and ADD float
   [rows, outputs]; for GATE activations of outputs / 2, for weights of kind `next`. */
static INLINE void use_products(const Linear *l, floats result[][GROUP], int group, int first, int some, int rows, Use use,
                                Kind next, void *out) {
    for (int m = 0; m < some; m++) {
        float gated[OUTPUTS / 2];
        for (int p = 0; p < GROUP; p++) {
            int at = (group * GROUP + p) * LANES, row = first + m;
            floats value = result[m][p];
            if (l->bias) value += *(const floats_in_memory *)(l->bias + at);
            result[m][p] = value;
            floats_in_memory *to = (floats_in_memory *)((float *)out + (size_t)row * l->outputs + at);
            if (use == STORE) *to = value;
            if (use == ADD) *to += value;
            if (use == GATE && p >= GROUP / 2) { /* the first half of a group belongs to the gate */
                floats gate = result[m][p - GROUP / 2];
                floats power = l->is_gelu ? gate * (gate * gate * 0.10294324f + 2.3022082f) : gate * 1.44269504f;
                value *= gate / (1.0f + exp2_of(-larger(power, (floats){} - 126.0f)));
                *(floats_in_memory *)(gated + (p - GROUP / 2) * LANES) = value;
            }
        }
        if (use == GATE)
            store_activations(gated, OUTPUTS / 2, next, out, first + m, rows, l->outputs / 2, group * OUTPUTS / 2);
    }
}

/* Returns the number of tasks of a product. A task has `span` groups of outputs and at most TILES tiles of rows. */
static int linear_tasks(const Linear *l, int rows, int span) {
    return (l->outputs / OUTPUTS + span - 1) / span * ((rows + TILE * TILES - 1) / (TILE * TILES));
}

static INLINE void run_linear(const Linear *l, Kind kind, const void *x, int rows, Use use, Kind next, void *out,
                              const Rounded *lows, int span, int task) {
    int inputs = l->inputs, groups = l->outputs / OUTPUTS, parts = (rows + TILE * TILES - 1) / (TILE * TILES);
    int first = task % parts * TILE * TILES, first_group = task / parts * span;
    int some = rows - first < TILE * TILES ? rows - first : TILE * TILES;
    for (int group = first_group; group < groups && group < first_group + span; group++) {
        size_t panel_bytes = (size_t)inputs * LANES * 2;
        const char *weights = (const char *)l->weights + group * GROUP * panel_bytes;
        floats result[TILES * TILE][GROUP];
        if (kind == PACKED)
            multiply_group_packed(l, group, use, (const Rounded *)x + (size_t)first * inputs / COLUMNS, lows + first / TILE * LOWS,
                                  some, result);
        for (int at = 0; at < some && kind != PACKED; at += TILE)
            multiply_group(weights, panel_bytes, (const activation *)x + (size_t)(first + at) * inputs, inputs / 2,
                           some - at < TILE ? some - at : TILE, result + at);
        use_products(l, result, group, first, some, rows, use, next, out);
    }
}

/* Runs one of `linear_tasks`. next, out: see `use_products`. lows: from `find_lows`, LOWS per tile, if has_lows */
static void linear(const Linear *l, const void *x, int rows, Use use, Kind next, void *out, const Rounded *lows, int span, int task) {
    if (l->kind == BFLOAT16) run_linear(l, BFLOAT16, x, rows, use, next, out, lows, span, task);
    if (l->kind == PACKED) run_linear(l, PACKED, x, rows, use, next, out, lows, span, task);
}

static int has_lows(const Linear *l) { return l->kind == PACKED && (l->parts[0].rank || l->parts[1].rank || l->parts[2].rank); }
