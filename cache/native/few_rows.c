/* One forward pass of few rows through a decoder of the Llama kind, at the speed of memory.

A pass of few rows costs what reading the weights and the keys and values costs, if nothing else stands in the way. So
the whole pass is one call and one parallel region: no tensor is made, and threads meet six times per layer.

Weights are packed in panels of LANES outputs: for each pair of inputs as many pairs of bfloat16, or of float32
where a weight is no bfloat16. Everything is summed in float32, the residual stream too.
Weights of 8 bits have a scale for each output and INT8_GROUP inputs, and so has each row of activations, which is rounded
to 8 bits just before.
Written in GCC's vector extensions, so it runs on any processor; AVX512-BF16 is used where it is, for models that are
bfloat16 as a whole.

Attention: every item is a run of slots that some rows of the pass read, some of them rotated back because the run was
encoded at other position ids. Runs are cut into units of UNIT keys, each computed once for all rows that read it; the
partial results of a row are merged by their log-sum-exp. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#define INLINE inline __attribute__((always_inline))

#if defined(__AVX512BF16__) && !defined(KV_FLOAT32) /* products of pairs of bfloat16 */
#define PAIRS
#endif

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

enum { OUTPUTS = 64, GROUP = OUTPUTS / LANES, UNIT = 256, MAX_ROWS = 32, BLOCK_ROWS = 16 };
/* For each sum of a block: `panels` and `rows` are constants where this is inlined. */
#define EACH_SUM \
    _Pragma("GCC unroll 16") for (int p = 0; p < panels; p++) _Pragma("GCC unroll 16") for (int m = 0; m < rows; m++)
#define HIGH 0xffff0000u
#define AHEAD 2048 /* bytes of weights to ask for before they are needed */

enum { INT8_GROUP = 32 };
typedef enum { BFLOAT16, FLOAT32, INT8 } Kind; /* of weights */
typedef enum { STORE, ADD, GATE } Use;   /* what becomes of a product */

#ifdef KV_FLOAT32
typedef float kv;
#else
typedef uint16_t kv; /* bfloat16 */
#endif

/* Vectors as wide as the processor's registers: the compiler does badly with wider ones. */
typedef float floats __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef int8_t bytes __attribute__((vector_size(LANES)));
typedef floats floats_in_memory __attribute__((aligned(4), may_alias));
typedef words words_in_memory __attribute__((aligned(2), may_alias));

/* Model and layers: pointers stay valid as long as the model does. */
typedef struct {
    const void *weights; /* panels */
    const float *bias;   /* NULL: none */
    int32_t kind, inputs, outputs; /* outputs: a multiple of OUTPUTS */
} Linear;

typedef struct {
    Linear qkv, out, gate_up, down; /* gate_up: panels of both in turn */
    const float *attention_norm, *mlp_norm, *query_norm, *key_norm; /* the last two may be NULL */
} Layer;

typedef struct {
    int32_t num_layers, hidden, heads, kv_heads, head_dim, rotary; /* rotary: turned dimensions of a head */
    float epsilon, scale;
    const Layer *layers;
    const uint16_t *embedding; /* bfloat16 [vocabulary, hidden] */
    const float *final_norm;
    Linear head;
} Model;

typedef struct {
    int32_t start, length;         /* slots */
    int32_t first_reader, readers; /* its readers: a part of the pass's list */
} Item;

typedef struct {
    int32_t row;    /* of the pass */
    int32_t length; /* how many of the item's keys it sees */
    int32_t turn;   /* which rotation back, -1: none */
} Reader;

typedef struct {
    int32_t rows, num_items, num_readers, num_outputs;
    const int32_t *tokens, *slots, *outputs; /* outputs: rows whose logits are wanted */
    const float *cos, *sin;           /* [rows, rotary / 2] of new queries and keys */
    const float *turn_cos, *turn_sin; /* [turns, rotary / 2] */
    const Item *items;
    const Reader *readers;
    kv *const *keys, *const *values; /* by layer: [slots, kv_heads, head_dim] */
    float *logits;                   /* [num_outputs, vocabulary] */
    int32_t threads;
} Step;

/* --- numbers ----------------------------------------------------------------------------------------------------- */

static INLINE float from_bf16(uint16_t x) {
    union { uint32_t u; float f; } bits = {.u = (uint32_t)x << 16};
    return bits.f;
}

static INLINE uint16_t to_bf16(float x) {
    union { float f; uint32_t u; } bits = {.f = x};
    return (bits.u + 0x7fff + ((bits.u >> 16) & 1)) >> 16;
}

static INLINE float sum(floats x) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += x[i];
    return total;
}

static INLINE floats larger(floats a, floats b) {
#ifdef __AVX512F__
    return (floats)_mm512_max_ps((__m512)a, (__m512)b);
#else
    ints first = a > b;
    return (floats)(((ints)a & first) | ((ints)b & ~first));
#endif
}

/* 2 to the power of x, which is at most 126 */
static INLINE floats exp2_of(floats x) {
    x = larger(x, (floats){} - 126.0f);
    floats shifted = x + 12582912.0f; /* 1.5 * 2^23: the integer nearest to x is in its last bits */
    ints whole = (ints)shifted - 0x4b400000;
    floats rest = x - (shifted - 12582912.0f);
    floats p = rest * 1.33335581e-3f + 9.61812911e-3f;
    p = p * rest + 5.55033281e-2f;
    p = p * rest + 2.40226463e-1f;
    p = p * rest + 6.93147182e-1f;
    p = p * rest + 1.0f;
    return (floats)((ints)p + (whole << 23));
}

/* --- linear layers ----------------------------------------------------------------------------------------------- */

/* Products of a pair of inputs, added for LANES outputs: two at once in bfloat16, or one by one in float32. */
#ifdef PAIRS
typedef uint16_t activation; /* bfloat16 */
typedef words weight_pair;
static INLINE floats add_products(floats acc, weight_pair w, const activation *x) {
    return (floats)_mm512_dpbf16_ps((__m512)acc, (__m512bh)w, (__m512bh)_mm512_set1_epi32(*(const int *)x));
}
static INLINE weight_pair pair_of(words bits) { return bits; }
static INLINE words activations_of(floats x) { return (words)_mm512_castsi256_si512((__m256i)_mm512_cvtneps_pbh((__m512)x)); }
#else
typedef float activation;
typedef struct { floats first, second; } weight_pair;
static INLINE floats add_products(floats acc, weight_pair w, const activation *x) {
    return acc + w.first * x[0] + w.second * x[1];
}
static INLINE weight_pair pair_of(words bits) { return (weight_pair){(floats)(bits << 16), (floats)(bits & HIGH)}; }
static INLINE words activations_of(floats x) { return (words)x; }
#endif

/* Activations of several rows are kept in pairs, one row after another: [inputs / 2, rows, 2]. This stores LANES of one
   row, the first of which are `to`. */
static INLINE void scatter(floats x, activation *to, int rows) {
    union { words all; struct { activation of[2]; } pairs[LANES / 2]; } bits = {activations_of(x)};
    for (int i = 0; i < LANES / 2; i++) memcpy(to + (size_t)i * rows * 2, bits.pairs + i, 2 * sizeof(activation));
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
                            int panels, int rows, floats result[][MAX_ROWS]) {
    floats total[GROUP][BLOCK_ROWS]; /* of constant size, and every loop over it unrolled: else it is not kept in registers */
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

/* GROUP panels times any number of rows, in blocks whose sums fill the registers. */
static INLINE void multiply_group(const char *weights, size_t panel_bytes, const activation *x, int pairs, Kind kind,
                                  int rows, floats result[][MAX_ROWS]) {
#define BLOCK(M, P) \
    for (; row + M <= rows; row += M) \
        for (int p = 0; p < GROUP; p += P) \
            multiply(weights + p * panel_bytes, panel_bytes, x + row * 2, rows, pairs, kind, P, M, \
                     (floats(*)[MAX_ROWS]) & result[p][row]);
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

/* Rows of activations in 8 bits: numbers [inputs / 4, rows, 4]; scales, and -128 times the sums of numbers,
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
                                 int rows, floats result[][MAX_ROWS]) {
    floats total[GROUP][BLOCK_ROWS];
    EACH_SUM total[p][m] = (floats){};
    for (int group = 0; group < inputs / INT8_GROUP; group++, x.scales += stride, x.sums += stride) {
        ints sums[GROUP][BLOCK_ROWS];
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
                                       floats result[][MAX_ROWS]) {
#define BLOCK(M, P) \
    for (; row + M <= rows; row += M) \
        for (int p = 0; p < GROUP; p += P) \
            multiply_int8(weights + p * panel_bytes, panel_bytes, \
                          (Rounded){x.numbers + 4 * row, x.scales + row, x.sums + row}, rows, inputs, P, M, \
                          (floats(*)[MAX_ROWS]) & result[p][row]);
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

/* out: float [rows, outputs], stored or added to; or, for gate_up, activations of outputs / 2. */
static INLINE void linear_of(const Linear *l, Kind kind, const activation *x, int rows, Use use, void *out, void *scratch,
                             int thread, int threads) {
    int pairs = l->inputs / 2, groups = l->outputs / LANES / GROUP, scale_groups = l->inputs / INT8_GROUP;
    size_t panel_bytes = (size_t)l->inputs * LANES * (kind == BFLOAT16 ? 2 : 4);
    Rounded rounded;
    if (kind == INT8) {
        panel_bytes = (size_t)l->inputs * LANES + (size_t)(scale_groups + 1) / 2 * LANES * 4;
        float *scales = scratch;
        int32_t *sums = (int32_t *)(scales + (size_t)scale_groups * rows);
        rounded = (Rounded){(int8_t *)(sums + (size_t)scale_groups * rows), scales, sums};
        round_activations(x, l->inputs, rows, rounded);
    }
    floats result[GROUP][MAX_ROWS];
    for (int group = groups * thread / threads; group < groups * (thread + 1) / threads; group++) {
        const char *weights = (const char *)l->weights + group * GROUP * panel_bytes;
        if (kind == INT8) multiply_group_int8(weights, panel_bytes, rounded, l->inputs, rows, result);
        else multiply_group(weights, panel_bytes, x, pairs, kind, rows, result);
        for (int row = 0; row < rows; row++)
            for (int p = 0; p < GROUP; p++) {
                int at = (group * GROUP + p) * LANES;
                floats value = result[p][row];
                if (l->bias) value += *(const floats_in_memory *)(l->bias + at);
                result[p][row] = value;
                floats_in_memory *to = (floats_in_memory *)((float *)out + (size_t)row * l->outputs + at);
                if (use == STORE) *to = value;
                if (use == ADD) *to += value;
                if (use == GATE && p % 2) { /* panels of gate and up stand in turn */
                    floats gate = result[p - 1][row];
                    value *= gate / (1.0f + exp2_of(-larger(gate * 1.44269504f, (floats){} - 126.0f)));
                    scatter(value, (activation *)out + ((size_t)(at / LANES / 2 * LANES) * rows + row * 2), rows);
                }
            }
    }
}

/* scratch: memory of this thread, `rounded_bytes` */
static void linear(const Linear *l, const activation *x, int rows, Use use, void *out, void *scratch, int thread,
                   int threads) {
    if (l->kind == BFLOAT16) linear_of(l, BFLOAT16, x, rows, use, out, scratch, thread, threads);
    if (l->kind == INT8) linear_of(l, INT8, x, rows, use, out, scratch, thread, threads);
#ifndef PAIRS
    if (l->kind == FLOAT32) linear_of(l, FLOAT32, x, rows, use, out, scratch, thread, threads);
#endif
}

/* out: where the row begins among `rows` rows of activations */
static void norm(const float *x, const float *weight, int n, float epsilon, activation *out, int rows) {
    floats squares = {};
    for (int i = 0; i < n; i += LANES) {
        floats part = *(const floats_in_memory *)(x + i);
        squares += part * part;
    }
    float factor = 1.0f / sqrtf(sum(squares) / n + epsilon);
    for (int i = 0; i < n; i += LANES) {
        floats part = *(const floats_in_memory *)(x + i) * factor * *(const floats_in_memory *)(weight + i);
        scatter(part, out + (size_t)i * rows, rows);
    }
}

static void norm_head(float *x, const float *weight, int n, float epsilon) {
    float squares = 0;
    for (int i = 0; i < n; i++) squares += x[i] * x[i];
    float factor = 1.0f / sqrtf(squares / n + epsilon);
    for (int i = 0; i < n; i++) x[i] *= factor * weight[i];
}

static INLINE void rotate(const float *x, const float *cos, const float *sin, int half, float *out) {
    int i = 0;
    for (; i + LANES <= half; i += LANES) {
        floats a = *(const floats_in_memory *)(x + i), b = *(const floats_in_memory *)(x + i + half);
        floats c = *(const floats_in_memory *)(cos + i), s = *(const floats_in_memory *)(sin + i);
        *(floats_in_memory *)(out + i) = a * c - b * s;
        *(floats_in_memory *)(out + i + half) = b * c + a * s;
    }
    for (; i < half; i++) {
        float a = x[i], b = x[i + half];
        out[i] = a * cos[i] - b * sin[i];
        out[i + half] = b * cos[i] + a * sin[i];
    }
}

/* --- attention --------------------------------------------------------------------------------------------------- */

typedef struct {
    int32_t item, first; /* first: of its keys */
    int32_t partial;     /* of its first reader */
} Unit;

static INLINE kv to_kv(float x) {
#ifdef KV_FLOAT32
    return x;
#else
    return to_bf16(x);
#endif
}

/* 2 * LANES dimensions of the values of a pair of keys: the even and the odd ones where they come in pairs, else the
   first and the last half */
static INLINE void load_values(const kv *v, const kv *next, weight_pair *one, weight_pair *other) {
#ifdef KV_FLOAT32
    *one = (weight_pair){((const floats_in_memory *)v)[0], ((const floats_in_memory *)next)[0]};
    *other = (weight_pair){((const floats_in_memory *)v)[1], ((const floats_in_memory *)next)[1]};
#else
    words a = *(const words_in_memory *)v, b = *(const words_in_memory *)next;
    *one = pair_of((a & ~HIGH) | (b << 16)), *other = pair_of((a >> 16) | (b & HIGH));
#endif
}

static INLINE void store_value(floats one, floats other, float *to) {
    for (int i = 0; i < LANES; i++) {
#ifdef KV_FLOAT32
        to[i] = one[i], to[i + LANES] = other[i];
#else
        to[2 * i] = one[i], to[2 * i + 1] = other[i];
#endif
    }
}

/* queries [head_dim / 2, readers * group, 2] of one unit, rotated back where the run is placed elsewhere */
static void gather_queries(const Model *m, const Step *s, const Item *item, int kv_head, const float *qkv, int width,
                           activation *queries) {
    int d = m->head_dim, group = m->heads / m->kv_heads, rows = item->readers * group, half = m->rotary / 2;
    float turned[d];
    for (int r = 0; r < item->readers; r++) {
        const Reader *reader = s->readers + item->first_reader + r;
        for (int g = 0; g < group; g++) {
            const float *q = qkv + (size_t)reader->row * width + (kv_head * group + g) * d;
            if (reader->turn >= 0) {
                rotate(q, s->turn_cos + reader->turn * half, s->turn_sin + reader->turn * half, half, turned);
                memcpy(turned + 2 * half, q + 2 * half, (d - 2 * half) * sizeof(float));
                q = turned;
            }
            for (int i = 0; i < d; i += LANES)
                scatter(*(const floats_in_memory *)(q + i), queries + ((size_t)i * rows + 2 * (r * group + g)), rows);
        }
    }
}

/* Transposes LANES vectors in place, in steps that exchange 1, 2, 4 ... of their numbers. */
static INLINE void transpose(words *rows) {
    ints lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
#pragma GCC unroll 4
    for (int step = 1; step < LANES; step *= 2) {
        ints is_other = (lane & step) != 0; /* all bits set where true */
        ints low = lane + (is_other & (LANES - step)), high = lane + (~is_other & step) + (is_other & LANES);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            if (!(i & step)) {
                words a = rows[i], b = rows[i + step];
                rows[i] = __builtin_shuffle(a, b, low);
                rows[i + step] = __builtin_shuffle(a, b, high);
            }
    }
}

/* The dimensions of LANES keys, or of the last ones, one after another (in pairs, if they are bfloat16). */
static INLINE void load_keys(const kv *k, size_t stride, int keys, int d, weight_pair *tile) {
    int units = d * (int)sizeof(kv) / 4;
    for (int first = 0; first < units; first += LANES) {
        words rows[LANES];
#pragma GCC unroll 16
        for (int j = 0; j < LANES; j++)
            rows[j] = *(const words_in_memory *)((const uint32_t *)(k + (j < keys ? j : keys - 1) * stride) + first);
        transpose(rows);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
#ifdef KV_FLOAT32
            ((words *)tile)[first + i] = rows[i];
#else
            tile[first + i] = pair_of(rows[i]);
#endif
    }
}

/* Scores of LANES keys, whose pairs of dimensions are in `tile`, for `rows` queries (a constant where inlined) of
   `stride`. */
static INLINE void score(const weight_pair *tile, const activation *queries, int stride, int pairs, int rows, float scale,
                         float *scores) {
    floats total[rows];
    for (int r = 0; r < rows; r++) total[r] = (floats){};
    for (int i = 0; i < pairs; i++, queries += 2 * stride)
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) total[r] = add_products(total[r], tile[i], queries + 2 * r);
    for (int r = 0; r < rows; r++) *(floats_in_memory *)(scores + r * UNIT) = total[r] * scale;
}

/* Adds up 2 * LANES dimensions of the values of `keys` keys, for `rows` rows of weights (a constant where inlined). */
static INLINE void weigh(const kv *v, size_t stride, int keys, const activation *weights, int rows, float *to, int to_stride) {
    floats one[rows], other[rows];
    for (int r = 0; r < rows; r++) one[r] = other[r] = (floats){};
    for (int j = 0; j < keys; j += 2, v += 2 * stride) {
        weight_pair a, b;
        load_values(v, j + 1 < keys ? v + stride : v, &a, &b);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            one[r] = add_products(one[r], a, weights + r * UNIT + j);
            other[r] = add_products(other[r], b, weights + r * UNIT + j);
        }
    }
    for (int r = 0; r < rows; r++) store_value(one[r], other[r], to + r * to_stride);
}

/* The scores of a row over `keys` keys, of which it sees the first `seen`, become weights. to: the largest score and
   the sum of the weights */
static void soften(float *scores, int seen, int keys, activation *weights, float *to) {
    int padded = (keys + LANES - 1) / LANES * LANES;
    for (int j = seen; j < padded; j++) scores[j] = -INFINITY;
    floats most = (floats){} - 1e30f, total = {};
    for (int j = 0; j < padded; j += LANES) most = larger(most, *(const floats_in_memory *)(scores + j));
    float highest = most[0];
    for (int j = 1; j < LANES; j++) highest = most[j] > highest ? most[j] : highest;
    for (int j = 0; j < padded; j += LANES) {
        floats weight = exp2_of(*(const floats_in_memory *)(scores + j) - highest);
        total += weight;
        scatter(weight, weights + j, 1);
    }
    for (int j = seen; j < padded; j++) weights[j] = 0; /* were 2^-126 */
    to[0] = seen ? highest : -INFINITY;
    to[1] = sum(total);
}

/* Brings a unit into the cache. Its keys are read head by head, which is no order that the processor would fetch ahead
   in; reading all of them once as they lie in memory is twice as fast. */
static void touch(const Model *m, const Step *s, const Unit *unit, int layer) {
    const Item *item = s->items + unit->item;
    int keys = item->length - unit->first < UNIT ? item->length - unit->first : UNIT, stride = m->kv_heads * m->head_dim;
    size_t begin = (size_t)(item->start + unit->first) * stride, numbers = (size_t)keys * stride;
    for (size_t i = 0; i < numbers; i += 64 / sizeof(kv)) (void)*(const volatile kv *)(s->keys[layer] + begin + i);
    for (size_t i = 0; i < numbers; i += 64 / sizeof(kv)) (void)*(const volatile kv *)(s->values[layer] + begin + i);
}

/* One unit for one key/value head: for each reader and query head the weighted sum of values, the largest score and the
   sum of weights. */
static void attend(const Model *m, const Step *s, const Unit *unit, int kv_head, int layer, const float *qkv, int width,
                   activation *queries, float *scores, activation *weights, float *partials) {
    const Item *item = s->items + unit->item;
    int d = m->head_dim, group = m->heads / m->kv_heads, rows = item->readers * group, stride = m->kv_heads * d;
    int keys = item->length - unit->first < UNIT ? item->length - unit->first : UNIT;
    size_t begin = (size_t)(item->start + unit->first) * stride + kv_head * d;
    const kv *k = s->keys[layer] + begin, *v = s->values[layer] + begin;
    gather_queries(m, s, item, kv_head, qkv, width, queries);
    float scale = m->scale * 1.44269504f;
    weight_pair tile[d / 2];
    for (int first = 0; first < keys; first += LANES) {
        load_keys(k + (size_t)first * stride, stride, keys - first, d, tile);
#define ROWS(N) for (; r + N <= rows; r += N) score(tile, queries + 2 * r, rows, d / 2, N, scale, scores + r * UNIT + first)
        int r = 0;
        ROWS(12);
        ROWS(6);
        ROWS(3);
        ROWS(1);
#undef ROWS
    }
    float *partial = partials + ((size_t)unit->partial * m->kv_heads + (size_t)kv_head * item->readers) * group * (d + 2);
    for (int r = 0; r < rows; r++) {
        int seen = s->readers[item->first_reader + r / group].length - unit->first;
        soften(scores + r * UNIT, seen < 0 ? 0 : seen > keys ? keys : seen, keys, weights + r * UNIT, partial + r * (d + 2) + d);
    }
    for (int part = 0; part < d; part += 2 * LANES) {
        int r = 0;
#define ROWS(N) for (; r + N <= rows; r += N) \
            weigh(v + part, stride, keys, weights + r * UNIT, N, partial + r * (d + 2) + part, d + 2)
        ROWS(12);
        ROWS(6);
        ROWS(3);
        ROWS(1);
#undef ROWS
    }
}

/* --- the pass ---------------------------------------------------------------------------------------------------- */

typedef struct {
    int32_t *parts, *first_part; /* by row: which partials, as (first of the unit, readers, place among them) */
} Plan;

static void *take(char **memory, size_t bytes) {
    void *found = *memory;
    *memory += (bytes + 63) & ~(size_t)63;
    return found;
}

/* out: activations of `rows` rows */
static void merge(const Model *m, const Plan *plan, int row, int head, const float *partials, activation *out, int rows) {
    int d = m->head_dim, group = m->heads / m->kv_heads;
    float highest = -INFINITY, total = 0, result[d];
    memset(result, 0, sizeof result);
    for (int pass = 0; pass < 2; pass++)
        for (int p = plan->first_part[row]; p < plan->first_part[row + 1]; p++) {
            const int32_t *part = plan->parts + 3 * p;
            size_t at = (size_t)part[0] * m->kv_heads + (size_t)(head / group) * part[1] + part[2];
            const float *one = partials + (at * group + head % group) * (d + 2);
            if (one[d] == -INFINITY) continue;
            if (pass == 0) highest = one[d] > highest ? one[d] : highest;
            else {
                float weight = exp2f(one[d] - highest);
                total += weight * one[d + 1];
                for (int i = 0; i < d; i++) result[i] += weight * one[i];
            }
        }
    for (int i = 0; i < d; i += LANES)
        scatter(*(floats_in_memory *)(result + i) / total, out + ((size_t)(head * d + i) * rows + 2 * row), rows);
}

/* How many outputs a panel has. */
int warmdesk_lanes(void) { return LANES; }

/* Returns 0, or 1 if there is no memory. */
int warmdesk_step(const Model *m, const Step *s) {
    int rows = s->rows, d = m->head_dim, q_width = m->heads * d, kv_width = m->kv_heads * d;
    int width = q_width + 2 * kv_width, inner = m->layers[0].down.inputs, group = m->heads / m->kv_heads;
    int num_units = 0, num_partials = 0, most_readers = 1;
    for (int i = 0; i < s->num_items; i++) {
        int cuts = (s->items[i].length + UNIT - 1) / UNIT;
        num_units += cuts;
        num_partials += cuts * s->items[i].readers;
        if (s->items[i].readers > most_readers) most_readers = s->items[i].readers;
    }
    size_t query_bytes = (size_t)most_readers * group * d * sizeof(activation), score_bytes = (size_t)most_readers * group * UNIT * 4;
    size_t weight_bytes = (size_t)most_readers * group * UNIT * sizeof(activation);
    size_t widest = m->hidden > q_width ? m->hidden : q_width;
    size_t most_inputs = widest > (size_t)inner ? widest : (size_t)inner, scratch_bytes = rounded_bytes(most_inputs, rows);
    size_t private_bytes = ((scratch_bytes + 63) & ~(size_t)63) + ((query_bytes + 63) & ~(size_t)63) + ((score_bytes + 63) & ~(size_t)63) + ((weight_bytes + 63) & ~(size_t)63) + ((rows * widest * sizeof(activation) + 63) & ~(size_t)63);
    size_t bytes = 64 * 16 + (size_t)num_units * sizeof(Unit) + (size_t)num_partials * 12 + (rows + 2) * 4 +
                   (size_t)rows * (m->hidden * 4 + width * 4 + (q_width + inner) * sizeof(activation)) +
                   (size_t)num_partials * m->heads * (d + 2) * 4 + (size_t)s->threads * private_bytes;
    char *memory = NULL;
    if (posix_memalign((void **)&memory, 64, bytes)) return 1;
    char *rest = memory;
    Unit *units = take(&rest, num_units * sizeof(Unit));
    Plan plan = {take(&rest, num_partials * 12), take(&rest, (rows + 2) * 4)};
    float *x = take(&rest, (size_t)rows * m->hidden * 4), *qkv = take(&rest, (size_t)rows * width * 4);
    activation *attended = take(&rest, (size_t)rows * q_width * sizeof(activation));
    activation *gated = take(&rest, (size_t)rows * inner * sizeof(activation));
    float *partials = take(&rest, (size_t)num_partials * m->heads * (d + 2) * 4);
    char *private_memory = rest;

    memset(plan.first_part, 0, (rows + 2) * 4);
    for (int i = 0, unit = 0, partial = 0; i < s->num_items; i++)
        for (int first = 0; first < s->items[i].length; first += UNIT) {
            units[unit++] = (Unit){i, first, partial};
            partial += s->items[i].readers;
            for (int r = 0; r < s->items[i].readers; r++) plan.first_part[s->readers[s->items[i].first_reader + r].row + 2]++;
        }
    for (int row = 0; row <= rows; row++) plan.first_part[row + 1] += plan.first_part[row];
    for (int u = 0; u < num_units; u++) {
        const Item *item = s->items + units[u].item;
        for (int r = 0; r < item->readers; r++) {
            int32_t *part = plan.parts + 3 * plan.first_part[s->readers[item->first_reader + r].row + 1]++;
            part[0] = units[u].partial, part[1] = item->readers, part[2] = r;
        }
    }
    for (int row = 0; row < rows; row++)
        for (int i = 0; i < m->hidden; i++)
            x[(size_t)row * m->hidden + i] = from_bf16(m->embedding[(size_t)s->tokens[row] * m->hidden + i]);

#pragma omp parallel num_threads(s->threads)
    {
#ifdef _OPENMP
        int thread = omp_get_thread_num(), threads = omp_get_num_threads();
#else
        int thread = 0, threads = 1;
#endif
        char *mine = private_memory + thread * private_bytes;
        activation *queries = take(&mine, query_bytes);
        float *scores = take(&mine, score_bytes);
        void *scratch = take(&mine, scratch_bytes);
        activation *weights = take(&mine, weight_bytes);
        activation *normed = take(&mine, rows * widest * sizeof(activation));
        for (int layer = 0; layer < m->num_layers; layer++) {
            const Layer *l = m->layers + layer;
            for (int row = 0; row < rows; row++)
                norm(x + (size_t)row * m->hidden, l->attention_norm, m->hidden, m->epsilon, normed + 2 * row, rows);
            linear(&l->qkv, normed, rows, STORE, qkv, scratch, thread, threads);
#pragma omp barrier
#pragma omp for collapse(2) schedule(static)
            for (int row = 0; row < rows; row++)
                for (int head = 0; head < m->heads + 2 * m->kv_heads; head++) {
                    float *vector = qkv + (size_t)row * width + head * d;
                    int half = m->rotary / 2, is_value = head >= m->heads + m->kv_heads, is_key = head >= m->heads && !is_value;
                    if (!is_value) {
                        const float *weight = is_key ? l->key_norm : l->query_norm;
                        if (weight) norm_head(vector, weight, d, m->epsilon);
                        rotate(vector, s->cos + row * half, s->sin + row * half, half, vector);
                    }
                    if (is_key || is_value) {
                        kv *to = (is_key ? s->keys : s->values)[layer] + (size_t)s->slots[row] * kv_width +
                                       (head - m->heads - (is_value ? m->kv_heads : 0)) * d;
                        for (int i = 0; i < d; i++) to[i] = to_kv(vector[i]);
                    }
                }
#pragma omp for schedule(dynamic, 1)
            for (int unit = 0; unit < num_units; unit++) {
                touch(m, s, units + unit, layer);
                for (int head = 0; head < m->kv_heads; head++)
                    attend(m, s, units + unit, head, layer, qkv, width, queries, scores, weights, partials);
            }
#pragma omp for collapse(2) schedule(static)
            for (int row = 0; row < rows; row++)
                for (int head = 0; head < m->heads; head++) merge(m, &plan, row, head, partials, attended, rows);
            linear(&l->out, attended, rows, ADD, x, scratch, thread, threads);
#pragma omp barrier
            for (int row = 0; row < rows; row++)
                norm(x + (size_t)row * m->hidden, l->mlp_norm, m->hidden, m->epsilon, normed + 2 * row, rows);
            linear(&l->gate_up, normed, rows, GATE, gated, scratch, thread, threads);
#pragma omp barrier
            linear(&l->down, gated, rows, ADD, x, scratch, thread, threads);
#pragma omp barrier
        }
        for (int i = 0; i < s->num_outputs; i++)
            norm(x + (size_t)s->outputs[i] * m->hidden, m->final_norm, m->hidden, m->epsilon, normed + 2 * i, s->num_outputs);
        if (s->num_outputs) linear(&m->head, normed, s->num_outputs, STORE, s->logits, scratch, thread, threads);
    }
    free(memory);
    return 0;
}
