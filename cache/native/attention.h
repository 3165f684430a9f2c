/* Attention. Every item is a run of slots that some rows of the pass read. If the run was encoded at other position
ids, the reader's query is rotated back.

Runs are cut into units of at most UNIT keys and some readers. A unit is computed once for all its readers. The partial
results of a row are merged by their log-sum-exp. The rows of a pass are processed in windows, which limits the memory
for partial results. */

#pragma once
#include "model.h"

enum { UNIT = 256, WINDOW = 128, QUERIES = 192 }; /* most keys of a unit, rows of a window, queries of a unit and head */
enum { FEW = 8, AHEAD_KEYS = 24 }; /* FEW: most queries of a key/value head for `attend_few` */

typedef struct {
    int32_t item, first, keys;     /* keys `first` .. `first` + `keys` - 1 of an item */
    int32_t first_reader, readers; /* a range of the pass's list */
    int32_t partial;               /* index of its first reader's partial result in the window */
} Unit;

/* Numbers of units and partial results. most_partials: maximum of a window. */
typedef struct {
    int units, partials, most_partials;
} Cuts;

/* Cuts the items into units, window by window. units, first_unit [windows + 1]: outputs; NULL: only count. */
static Cuts cut(const Step *s, int most_readers, Unit *units, int32_t *first_unit) {
    Cuts found = {0};
    int window = 0;
    for (int end = WINDOW; end < s->rows + WINDOW; end += WINDOW, window++) {
        int partials = 0;
        if (first_unit) first_unit[window] = found.units;
        for (int i = 0; i < s->num_items; i++) {
            int at = s->items[i].first_reader, behind = at + s->items[i].readers;
            while (at < behind && s->readers[at].row < end - WINDOW) at++;
            while (at < behind && s->readers[at].row < end) {
                int first_reader = at, longest = 0;
                for (; at < behind && s->readers[at].row < end && at - first_reader < most_readers; at++)
                    if (s->readers[at].length > longest) longest = s->readers[at].length;
                for (int first = 0; first < longest; first += UNIT, found.units++) {
                    int keys = longest - first < UNIT ? longest - first : UNIT;
                    if (units) units[found.units] = (Unit){i, first, keys, first_reader, at - first_reader, partials};
                    partials += at - first_reader;
                }
            }
        }
        found.partials += partials;
        if (partials > found.most_partials) found.most_partials = partials;
    }
    if (first_unit) first_unit[window] = found.units;
    return found;
}

static INLINE kv to_kv(float x) {
#ifdef KV_FLOAT32
    return x;
#else
    return to_bf16(x);
#endif
}

/* Loads 2 * LANES dimensions of the values of two keys: for bfloat16 the even and the odd dimensions, for float32 the
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

/* Returns a reader's query, rotated back if the run was encoded at other positions. turned: memory for the result */
static INLINE const float *query_of(const Model *m, const Step *s, const Reader *reader, int head, const float *qkv, int width,
                                    float *turned) {
    int d = m->head_dim, half = m->rotary / 2;
    const float *q = qkv + (size_t)reader->row * width + head * d;
    if (reader->turn < 0) return q;
    rotate(q, s->turn_cos + reader->turn * half, s->turn_sin + reader->turn * half, half, turned);
    memcpy(turned + 2 * half, q + 2 * half, (d - 2 * half) * sizeof(float));
    return turned;
}

/* Stores the queries of some readers: [head_dim / 2, readers * group, 2] */
static void gather_queries(const Model *m, const Step *s, const Reader *readers, int num_readers, int kv_head,
                           const float *qkv, int width, activation *queries) {
    int d = m->head_dim, group = m->heads / m->kv_heads, rows = num_readers * group;
    float turned[d];
    for (int r = 0; r < rows; r++) {
        const float *q = query_of(m, s, readers + r / group, kv_head * group + r % group, qkv, width, turned);
        for (int i = 0; i < d; i += LANES)
            scatter(*(const floats_in_memory *)(q + i), queries + ((size_t)i * rows + 2 * r), rows);
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

/* Loads LANES keys (or fewer at the end) transposed: dimension by dimension, for bfloat16 pair by pair. */
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
static INLINE void score_lanes(const weight_pair *tile, const activation *queries, int stride, int pairs, int rows, float scale,
                         float *scores) {
    floats total[rows];
    for (int r = 0; r < rows; r++) total[r] = (floats){};
    for (int i = 0; i < pairs; i++, queries += 2 * stride)
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) total[r] = add_products(total[r], tile[i], queries + 2 * r);
    for (int r = 0; r < rows; r++) *(floats_in_memory *)(scores + r * UNIT) = total[r] * scale;
}

/* Sums 2 * LANES dimensions of the values of `keys` keys, for `rows` rows of weights (a constant where inlined). */
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

/* Sets the scores of hidden keys to -inf. scores [rows, UNIT]: of the keys from `first` on */
static INLINE void hide(const Item *item, const int32_t *hidden, int first, int keys, int rows, float *scores) {
    for (int i = 0; i < item->hidden; i++) {
        int key = hidden[item->first_hidden + i] - first;
        for (int r = 0; key >= 0 && key < keys && r < rows; r++) scores[r * UNIT + key] = -INFINITY;
    }
}

/* Applies the soft cap to a row's scores. Sets the scores of keys before the row's window to -inf. */
static INLINE void limit(const Model *m, const Step *s, const Unit *unit, int layer, int row, float *scores) {
    float cap = m->cap * 1.44269504f;
    for (int j = 0; cap > 0 && j < unit->keys; j += LANES) {
        floats power = *(floats_in_memory *)(scores + j) * (2.88539008f / cap); /* cap * tanh(score / cap) */
        *(floats_in_memory *)(scores + j) = cap - 2 * cap / (1.0f + exp2_of(-larger(-power, (floats){} - 126.0f)));
    }
    if (!m->layers[layer].is_local) return;
    const int64_t *keys = s->key_positions + s->items[unit->item].start + unit->first;
    for (int j = 0; j < unit->keys && keys[j] + m->window <= s->positions[row]; j++) scores[j] = -INFINITY;
}

/* Turns a row's scores of `keys` keys into weights. The row sees only the first `seen` keys. If weights are floats,
   they may overwrite the scores. to: receives the largest score and the sum of the weights */
static INLINE void soften(float *scores, int seen, int keys, int is_float, void *weights, float *to) {
    int padded = (keys + LANES - 1) / LANES * LANES;
    for (int j = seen; j < padded; j++) scores[j] = -INFINITY;
    floats most = (floats){} - 1e30f, total = {};
    for (int j = 0; j < padded; j += LANES) most = larger(most, *(const floats_in_memory *)(scores + j));
    float highest = most[0];
    for (int j = 1; j < LANES; j++) highest = most[j] > highest ? most[j] : highest;
    for (int j = 0; j < padded; j += LANES) {
        floats weight = exp2_of(*(const floats_in_memory *)(scores + j) - highest);
        total += weight;
        if (is_float) *(floats_in_memory *)((float *)weights + j) = weight;
        else scatter(weight, (activation *)weights + j, 1);
    }
    for (int j = seen; j < padded; j++) /* exp2_of gave 2^-126 */
        if (is_float) ((float *)weights)[j] = 0;
        else ((activation *)weights)[j] = 0;
    to[0] = highest > -1e30f ? highest : -INFINITY;
    to[1] = sum(total);
}

/* Loads a unit into the CPU's cache. Its keys are used head by head, an order in which the CPU does not prefetch. To
   read all of them once in memory order first is twice as fast. */
static void touch(const Model *m, const Step *s, const Unit *unit, int layer) {
    int stride = m->kv_heads * m->head_dim;
    size_t begin = (size_t)(s->items[unit->item].start + unit->first) * stride, numbers = (size_t)unit->keys * stride;
    for (size_t i = 0; i < numbers; i += 64 / sizeof(kv)) (void)*(const volatile kv *)(s->keys[layer] + begin + i);
    for (size_t i = 0; i < numbers; i += 64 / sizeof(kv)) (void)*(const volatile kv *)(s->values[layer] + begin + i);
}

/* Computes scores of `keys` keys of one head for `rows` queries: [rows, UNIT], as exponents of 2. */
static void score(const Model *m, const kv *k, int keys, const activation *queries, int rows, float *scores) {
    int d = m->head_dim, stride = m->kv_heads * d;
    float scale = m->scale * 1.44269504f;
    weight_pair tile[d / 2];
    for (int first = 0; first < keys; first += LANES) {
        load_keys(k + (size_t)first * stride, stride, keys - first, d, tile);
#define ROWS(N) \
    for (; r + N <= rows; r += N) score_lanes(tile, queries + 2 * r, rows, d / 2, N, scale, scores + r * UNIT + first)
        int r = 0;
        ROWS(12);
        ROWS(6);
        ROWS(3);
        ROWS(1);
#undef ROWS
    }
}

/* Computes one unit for one key/value head: for each reader and query head the weighted sum of values, the largest
   score, and the sum of weights. */
static void attend(const Model *m, const Step *s, const Unit *unit, int kv_head, int layer, const float *qkv, int width,
                   activation *queries, float *scores, activation *weights, float *partials) {
    int d = m->head_dim, group = m->heads / m->kv_heads, rows = unit->readers * group, stride = m->kv_heads * d;
    int keys = unit->keys;
    size_t begin = (size_t)(s->items[unit->item].start + unit->first) * stride + kv_head * d;
    const kv *k = s->keys[layer] + begin, *v = s->values[layer] + begin;
    gather_queries(m, s, s->readers + unit->first_reader, unit->readers, kv_head, qkv, width, queries);
    score(m, k, keys, queries, rows, scores);
    hide(s->items + unit->item, s->hidden, unit->first, keys, rows, scores);
    float *partial = partials + ((size_t)unit->partial * m->kv_heads + (size_t)kv_head * unit->readers) * group * (d + 2);
    for (int r = 0; r < rows; r++) {
        const Reader *reader = s->readers + unit->first_reader + r / group;
        int seen = reader->length - unit->first;
        limit(m, s, unit, layer, reader->row, scores + r * UNIT);
        soften(scores + r * UNIT, seen < 0 ? 0 : seen > keys ? keys : seen, keys, 0, weights + r * UNIT,
               partial + r * (d + 2) + d);
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

/* 2 * LANES numbers of a key or value: for bfloat16 the even and the odd ones, for float32 the first and the last half.
   Queries have the same order. */
typedef struct {
    floats first, second;
} Along;

static INLINE Along load_along(const kv *from) {
#ifdef KV_FLOAT32
    return (Along){((const floats_in_memory *)from)[0], ((const floats_in_memory *)from)[1]};
#else
    words bits = *(const words_in_memory *)from;
    return (Along){(floats)(bits << 16), (floats)(bits & HIGH)};
#endif
}

static INLINE Along query_along(const float *q) {
    Along found;
    for (int i = 0; i < LANES; i++) {
#ifdef KV_FLOAT32
        found.first[i] = q[i], found.second[i] = q[i + LANES];
#else
        found.first[i] = q[2 * i], found.second[i] = q[2 * i + 1];
#endif
    }
    return found;
}

/* Returns the sum of each of LANES vectors, in its lane. Overwrites the vectors. */
static INLINE floats sums_of(floats *rows) {
    ints lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
#pragma GCC unroll 4
    for (int step = 1; step < LANES; step *= 2) {
        ints is_other = (lane & step) != 0;
        ints low = lane + (is_other & (LANES - step)), high = lane + (~is_other & step) + (is_other & LANES);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i += 2 * step)
            rows[i] = __builtin_shuffle(rows[i], rows[i + step], low) + __builtin_shuffle(rows[i], rows[i + step], high);
    }
    return rows[0];
}

#define EACH_ROW _Pragma("GCC unroll 4") for (int r = 0; r < rows; r++)

/* Multiplies two keys with `rows` queries, at most 4 (a constant where inlined). The lanes are not yet summed. */
static INLINE void score_along(const kv *one, const kv *other, int parts, const Along *queries, int rows, floats (*total)[LANES]) {
    floats a[4], b[4];
    EACH_ROW a[r] = b[r] = (floats){};
    for (int p = 0; p < parts; p++) {
        Along x = load_along(one + 2 * LANES * p), y = load_along(other + 2 * LANES * p);
        EACH_ROW {
            Along q = queries[r * parts + p];
            a[r] += x.first * q.first, b[r] += y.first * q.first;
            a[r] += x.second * q.second, b[r] += y.second * q.second;
        }
    }
    EACH_ROW total[r][0] = a[r], total[r][1] = b[r];
}

/* Adds 2 * LANES numbers of `keys` values, weighted, to `sums`, for up to 4 `rows` (a constant where inlined). */
static INLINE void weigh_along(const kv *v, size_t stride, int keys, const float *weights, int rows, Along *sums, int parts) {
    Along sum[4];
    EACH_ROW sum[r] = sums[r * parts];
    for (int j = 0; j < keys; j++, v += stride) {
        Along x = load_along(v);
        EACH_ROW sum[r].first += x.first * weights[r * UNIT + j], sum[r].second += x.second * weights[r * UNIT + j];
    }
    EACH_ROW sums[r * parts] = sum[r];
}
#undef EACH_ROW

/* Prefetches two keys or values, AHEAD_KEYS later than `from`. */
static INLINE void fetch(const kv *from, size_t stride) {
    for (size_t i = 0; i < 2 * stride; i += 64 / sizeof(kv)) __builtin_prefetch(from + AHEAD_KEYS * stride + i);
}

/* Like `attend`, for all key/value heads and few queries. Memory is read once and in order; keys are not transposed. */
static void attend_few(const Model *m, const Step *s, const Unit *unit, int layer, const float *qkv, int width, Along *queries,
                       float *scores, Along *sums, float *partials) {
    int d = m->head_dim, group = m->heads / m->kv_heads, rows = unit->readers * group, all = rows * m->kv_heads;
    int keys = unit->keys, parts = d / (2 * LANES), stride = m->kv_heads * d;
    size_t begin = (size_t)(s->items[unit->item].start + unit->first) * stride;
    const kv *k = s->keys[layer] + begin, *v = s->values[layer] + begin;
    const Reader *readers = s->readers + unit->first_reader;
    float turned[d], *partial = partials + (size_t)unit->partial * m->heads * (d + 2);
    for (int i = 0; i < all; i++) {
        const float *q = query_of(m, s, readers + i % rows / group, i / rows * group + i % group, qkv, width, turned);
        for (int p = 0; p < parts; p++) queries[i * parts + p] = query_along(q + 2 * LANES * p);
    }
#define EACH_HEAD(ROWS_4_3_OR_1) \
    for (int head = 0; head < m->kv_heads; head++) { \
        int at = head * rows, end = at + rows; \
        for (; at + 4 <= end; at += 4) ROWS_4_3_OR_1(4); \
        for (; at + 3 <= end; at += 3) ROWS_4_3_OR_1(3); \
        for (; at < end; at++) ROWS_4_3_OR_1(1); \
    }
    for (int first = 0; first < keys; first += LANES) {
        floats total[all][LANES];
        for (int j = 0; j < LANES; j += 2) {
            const kv *one = k + (size_t)(first + j < keys ? first + j : keys - 1) * stride;
            const kv *other = first + j + 1 < keys ? one + stride : one;
            fetch(one, stride);
#define SCORE(N) score_along(one + head * d, other + head * d, parts, queries + at * parts, N, (floats(*)[LANES]) & total[at][j])
            EACH_HEAD(SCORE)
        }
        for (int i = 0; i < all; i++)
            *(floats_in_memory *)(scores + i * UNIT + first) = sums_of(total[i]) * (m->scale * 1.44269504f);
    }
    hide(s->items + unit->item, s->hidden, unit->first, keys, all, scores);
    for (int i = 0; i < all; i++) {
        int seen = readers[i % rows / group].length - unit->first;
        limit(m, s, unit, layer, readers[i % rows / group].row, scores + i * UNIT);
        soften(scores + i * UNIT, seen < 0 ? 0 : seen > keys ? keys : seen, keys, 1, scores + i * UNIT, partial + i * (d + 2) + d);
    }
    memset(sums, 0, (size_t)all * parts * sizeof(Along));
    for (int first = 0; first < keys; first += 16) {
        int some = keys - first < 16 ? keys - first : 16;
        for (int j = 0; j < some; j += 2) fetch(v + (size_t)(first + j) * stride, stride);
        for (int p = 0; p < parts; p++) {
#define WEIGH(N) weigh_along(v + (size_t)first * stride + head * d + 2 * LANES * p, stride, some, scores + at * UNIT + first, N, \
                             sums + at * parts + p, parts)
            EACH_HEAD(WEIGH)
        }
    }
    for (int i = 0; i < all * parts; i++)
        store_value(sums[i].first, sums[i].second, partial + i / parts * (d + 2) + i % parts * 2 * LANES);
}

/* Partial results of each row, in `parts` from first_part[row] on: (first one of the unit, readers, reader index). */
typedef struct {
    int32_t *parts, *first_part;
} Parts;

/* first_part: [rows + 2], zeroed */
static void find_parts(const Step *s, const Unit *units, int num_units, Parts to) {
    for (int u = 0; u < num_units; u++)
        for (int r = 0; r < units[u].readers; r++) to.first_part[s->readers[units[u].first_reader + r].row + 2]++;
    for (int row = 0; row <= s->rows; row++) to.first_part[row + 1] += to.first_part[row];
    for (int u = 0; u < num_units; u++)
        for (int r = 0; r < units[u].readers; r++) {
            int32_t *part = to.parts + 3 * to.first_part[s->readers[units[u].first_reader + r].row + 1]++;
            part[0] = units[u].partial, part[1] = units[u].readers, part[2] = r;
        }
}

/* Merges the partial results of one row and head. out: activations of `rows` rows for weights of a kind. Returns the
   base-2 logarithm of the row's sum of weights. */
static float merge(const Model *m, Parts found, int row, int head, const float *partials, Kind kind, void *out, int rows) {
    int d = m->head_dim, group = m->heads / m->kv_heads;
    float highest = -INFINITY, total = 0;
    floats result[d / LANES];
    memset(result, 0, sizeof result);
    for (int pass = 0; pass < 2; pass++)
        for (int p = found.first_part[row]; p < found.first_part[row + 1]; p++) {
            const int32_t *part = found.parts + 3 * p;
            size_t at = (size_t)part[0] * m->kv_heads + (size_t)(head / group) * part[1] + part[2];
            const float *one = partials + (at * group + head % group) * (d + 2);
            if (one[d] == -INFINITY) continue;
            if (pass == 0) highest = one[d] > highest ? one[d] : highest;
            else {
                float weight = exp2f(one[d] - highest);
                total += weight * one[d + 1];
                for (int i = 0; i < d / LANES; i++) result[i] += weight * ((const floats_in_memory *)one)[i];
            }
        }
    for (int i = 0; i < d / LANES; i++) result[i] /= total;
    store_activations((const float *)result, d, kind, out, row, rows, m->heads * d, head * d);
    return highest + log2f(total);
}
