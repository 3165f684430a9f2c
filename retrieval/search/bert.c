/* A BERT encoder over texts of any lengths, without padding.

Weights and activations are rounded to 16 bits: weights with a scale per output, activations with one per row. A product
and an addition of two such numbers are one instruction each on processors with AVX2, twice as fast as float32.
Cosines between these vectors of texts and float32 ones are above .9999. Sums are exact: `MOST_WEIGHT`, `most_of`.
Everything else is float32.

Short texts go through the layers together, because reading the weights would take longer than using them for one text.
Each thread takes one such bundle after another. Threads for passages have a low priority, so that questions go first,
together with passages that a question found before they were encoded. */

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#ifdef __AVX2__
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 16")
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define VECTORS_OF_512_BITS
enum { LANES = 16, ROWS = 12 }; /* numbers of a vector; rows whose sums, of two vectors each, stay in registers */
#else
enum { LANES = 8, ROWS = 6 };
#endif
enum { PANEL = 2 * LANES, HEAD = 32, OF_HEAD = 3 * HEAD / PANEL, MOST_WEIGHT = 1023 };
enum { BUNDLE = 192, MOST_THREADS = 64, NEAR = 65536 /* numbers that the second cache holds, with other data */ };

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef floats some_floats __attribute__((aligned(4), may_alias));
typedef ints some_ints __attribute__((aligned(4), may_alias));
typedef int16_t shorts __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

/* weights: [outputs / PANEL, inputs / 2, PANEL, 2]. outputs: a multiple of PANEL */
typedef struct {
    const int16_t *weights;
    const float *scales, *bias; /* [outputs] */
    int32_t inputs, outputs;
} Linear;

/* qkv: for each head its queries, then its keys, then its values.
   norms: weight and bias after attention, then weight and bias after the rest, [4, hidden] */
typedef struct {
    Linear qkv, out, up, down;
    const float *norms;
} Layer;

INLINE floats larger(floats a, floats b) {
#ifdef VECTORS_OF_512_BITS
    return (floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
    ints first = a > b;
    return (floats)(((ints)a & first) | ((ints)b & ~first));
#endif
}

INLINE float sum(floats x) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += x[i];
    return total;
}

INLINE float most(floats x) {
    float found = x[0];
    for (int i = 1; i < LANES; i++) found = x[i] > found ? x[i] : found;
    return found;
}

/* 2 to the power of x, which is at most 126 */
INLINE floats exp2_of(floats x) {
    x = larger(x, (floats){} - 126.0f);
    floats shifted = x + 12582912.0f; /* 1.5 * 2^23: the integer nearest to x is in its last bits */
    ints whole = (ints)shifted - 0x4b400000;
    floats rest = x - (shifted - 12582912.0f), p = rest * 1.33335581e-3f + 9.61812911e-3f;
    p = p * rest + 5.55033281e-2f;
    p = p * rest + 2.40226463e-1f;
    p = p * rest + 6.93147182e-1f;
    p = p * rest + 1.0f;
    return (floats)((ints)p + (whole << 23));
}

/* x times the normal distribution up to x, as a polynomial fitted up to 3 * sqrt(2). Error: 1e-5 of x. */
INLINE floats gelu(floats x) {
    const float end = 4.2426407f;
    floats near = -larger(-larger(x, (floats){} - end), (floats){} - end), u = near * near * (2 / (end * end)) - 1.0f;
    floats p = u * 4.90428288e-4f - 1.18112006e-3f;
    p = p * u + 1.70409373e-3f;
    p = p * u - 3.90766099e-3f;
    p = p * u + 8.69596631e-3f;
    p = p * u - 1.56673832e-2f;
    p = p * u + 2.56005247e-2f;
    p = p * u - 3.88965992e-2f;
    p = p * u + 5.56879891e-2f;
    p = p * u - 8.08937470e-2f;
    p = p * u + 1.66216627e-1f;
    return x * (p * near + 0.5f);
}

/* Adds the products of two weights with two numbers for each output. */
INLINE ints add_pairs(ints total, ints weights, const int16_t *numbers) {
#ifdef VECTORS_OF_512_BITS
    return (ints)_mm512_dpwssd_epi32((__m512i)total, (__m512i)weights, _mm512_set1_epi32(*(const int32_t *)numbers));
#elif defined(__AVX2__)
    return total + (ints)_mm256_madd_epi16((__m256i)weights, _mm256_set1_epi32(*(const int32_t *)numbers));
#else
    return total + (weights << 16 >> 16) * numbers[0] + (weights >> 16) * numbers[1];
#endif
}

/* The largest number of a row of activations with which no sum of `inputs` products is too large for 32 bits. */
static float most_of(int inputs) {
    float most = 2147000000.0f / ((float)inputs * MOST_WEIGHT);
    return most < 32767 ? most : 32767;
}

/* x [rows, n] -> numbers of 16 bits, and the scale of each row */
static void round_rows(const float *x, int rows, int n, int16_t *numbers, float *scales) {
    for (int row = 0; row < rows; row++, x += n, numbers += n) {
        floats largest = {};
        for (int i = 0; i < n; i += LANES) largest = larger(largest, (floats)(*(const some_ints *)(x + i) & 0x7fffffff));
        float highest = most(largest), factor = highest > 0 ? most_of(n) / highest : 0;
        scales[row] = highest / most_of(n);
        for (int i = 0; i < n; i += LANES) {
            ints whole = (ints)(*(const some_floats *)(x + i) * factor + 12582912.0f) - 0x4b400000;
            *(shorts *)(numbers + i) = __builtin_convertvector(whole, shorts);
        }
    }
}

typedef enum { STORE, ADD, GELU } Use;

/* `count` rows (a constant where inlined) times one panel. out: [count, PANEL], rows `stride` apart */
INLINE void multiply(const Linear *l, int panel, const int16_t *x, const float *row_scales, int count, Use use,
                     float *out, int stride) {
    ints total[ROWS][2];
    UNROLLED for (int r = 0; r < count; r++) total[r][0] = total[r][1] = (ints){};
    const int16_t *weights = l->weights + (size_t)panel * PANEL * l->inputs;
    for (int i = 0; i < l->inputs; i += 2, weights += 2 * PANEL) {
        __builtin_prefetch(weights + 2 * PANEL * 16);
        ints one = *(const some_ints *)weights, other = *(const some_ints *)(weights + PANEL);
        UNROLLED for (int r = 0; r < count; r++) {
            total[r][0] = add_pairs(total[r][0], one, x + (size_t)r * l->inputs + i);
            total[r][1] = add_pairs(total[r][1], other, x + (size_t)r * l->inputs + i);
        }
    }
    UNROLLED for (int r = 0; r < count; r++) UNROLLED for (int half = 0; half < 2; half++) {
        int at = panel * PANEL + half * LANES;
        floats value = __builtin_convertvector(total[r][half], floats) * *(const some_floats *)(l->scales + at);
        value = value * row_scales[r] + *(const some_floats *)(l->bias + at);
        some_floats *to = (some_floats *)(out + (size_t)r * stride + half * LANES);
        if (use == ADD) value += *to;
        *to = use == GELU ? (some_floats)gelu(value) : (some_floats)value;
    }
}

/* Some panels. numbers, scales: of the rows, [rows, inputs] and [rows]. out: [rows, panels * PANEL], rows `stride` apart.
   Numbers are used by all panels while they are in the second cache. */
INLINE void panels(const Linear *l, int first, int end, const int16_t *numbers, const float *scales, int rows, Use use,
                   float *out, int stride) {
    int most = NEAR / l->inputs / ROWS * ROWS;
    for (int start = 0; start < rows; start += most)
        for (int panel = first; panel < end; panel++) {
            int row = start, stop = start + most < rows ? start + most : rows;
#define BLOCK(N) \
    for (; row + N <= stop; row += N) \
        multiply(l, panel, numbers + (size_t)row * l->inputs, scales + row, N, use, \
                 out + (size_t)row * stride + (panel - first) * PANEL, stride)
            BLOCK(ROWS);
            if (ROWS > 6) BLOCK(6);
            BLOCK(3);
            BLOCK(2);
            BLOCK(1);
#undef BLOCK
        }
}

/* out [rows, outputs]. numbers, scales: scratch, [rows, inputs] and [rows] */
INLINE void linear(const Linear *l, const float *x, int rows, int16_t *numbers, float *scales, Use use, float *out) {
    round_rows(x, rows, l->inputs, numbers, scales);
    panels(l, 0, l->outputs / PANEL, numbers, scales, rows, use, out, l->outputs);
}

/* c [count, PANEL] = a [count, n] times b [n, PANEL]; `count` is a constant where inlined. */
INLINE void product(const float *a, int a_stride, const float *b, int n, int count, float *c, int c_stride) {
    floats total[ROWS][2];
    UNROLLED for (int r = 0; r < count; r++) total[r][0] = total[r][1] = (floats){};
    for (int k = 0; k < n; k++, b += PANEL) {
        floats one = *(const some_floats *)b, other = *(const some_floats *)(b + LANES);
        UNROLLED for (int r = 0; r < count; r++) {
            total[r][0] += one * a[(size_t)r * a_stride + k];
            total[r][1] += other * a[(size_t)r * a_stride + k];
        }
    }
    UNROLLED for (int r = 0; r < count; r++) UNROLLED for (int half = 0; half < 2; half++)
        *(some_floats *)(c + (size_t)r * c_stride + half * LANES) = total[r][half];
}

/* Scores of `keys` keys become weights, of `padded` (the last ones 0); returns their sum. */
static float soften(float *scores, int keys, int padded) {
    for (int i = keys; i < padded; i++) scores[i] = -INFINITY;
    floats highest = *(some_floats *)scores, total = {};
    for (int i = LANES; i < padded; i += LANES) highest = larger(highest, *(some_floats *)(scores + i));
    float limit = most(highest);
    for (int i = 0; i < padded; i += LANES)
        total += *(some_floats *)(scores + i) = exp2_of(*(some_floats *)(scores + i) - limit);
    return sum(total);
}

/* Some queries of one head. keys: [padded / PANEL, HEAD, PANEL], values: [HEAD / PANEL, rows, PANEL], scores: scratch,
   [count, padded] */
INLINE void attend(const float *q, int stride, const float *keys, const float *values, int rows, int padded, int count,
                   float *scores, float *out, int hidden) {
    float sums[ROWS];
    for (int key = 0; key < padded; key += PANEL)
        product(q, stride, keys + key * HEAD, HEAD, count, scores + key, padded);
    for (int r = 0; r < count; r++) sums[r] = soften(scores + (size_t)r * padded, rows, padded);
    for (int i = 0; i < HEAD; i += PANEL) product(scores, padded, values + i * rows, rows, count, out + i, hidden);
    for (int r = 0; r < count; r++)
        for (int i = 0; i < HEAD; i += LANES) *(some_floats *)(out + (size_t)r * hidden + i) /= sums[r];
}

/* One head of one text. qkv: [rows, 3, HEAD], out: [rows, HEAD], rows `hidden` apart. scratch: [2 * HEAD + ROWS, rows +
   PANEL] */
static void attention(const float *qkv, int rows, int hidden, float *scratch, float *out) {
    int stride = 3 * HEAD, padded = (rows + PANEL - 1) / PANEL * PANEL;
    float *keys = scratch, *values = keys + HEAD * padded, *scores = values + HEAD * padded;
    float scale = 1.44269504f / sqrtf(HEAD);
    memset(keys + (padded - PANEL) * HEAD, 0, HEAD * PANEL * sizeof(float));
    for (int row = 0; row < rows; row++) {
        const float *key = qkv + row * stride + HEAD;
        float *column = keys + row / PANEL * PANEL * HEAD + row % PANEL;
        for (int i = 0; i < HEAD; i++) column[i * PANEL] = key[i] * scale;
        for (int i = 0; i < HEAD; i += PANEL)
            memcpy(values + i * rows + row * PANEL, key + HEAD + i, PANEL * sizeof(float));
    }
    int row = 0;
#define BLOCK(N) \
    for (; row + N <= rows; row += N) \
        attend(qkv + row * stride, stride, keys, values, rows, padded, N, scores, out + (size_t)row * hidden, hidden)
    BLOCK(ROWS);
    if (ROWS > 6) BLOCK(6);
    BLOCK(3);
    BLOCK(1);
#undef BLOCK
}

/* x [rows, n] in place. weights: weight and bias, [2, n] */
static void norm(float *x, int rows, int n, const float *weights, float epsilon) {
    for (int row = 0; row < rows; row++, x += n) {
        floats total = {}, squares = {};
        for (int i = 0; i < n; i += LANES) total += *(some_floats *)(x + i);
        float mean = sum(total) / n;
        for (int i = 0; i < n; i += LANES) {
            floats off = *(some_floats *)(x + i) - mean;
            squares += off * off;
        }
        float factor = 1 / sqrtf(sum(squares) / n + epsilon);
        for (int i = 0; i < n; i += LANES)
            *(some_floats *)(x + i) = (*(some_floats *)(x + i) - mean) * factor * *(const some_floats *)(weights + i) +
                                      *(const some_floats *)(weights + n + i);
    }
}

/* A bundle of texts: starts [texts + 1], first row of each and the end. wide: scratch, [rows, the widest layer].
   attended: scratch, [rows, hidden] */
static void run(const Layer *l, int hidden, float epsilon, float *x, const int32_t *starts, int texts, float *wide,
                float *attended, float *scratch, int16_t *numbers, float *scales) {
    int rows = starts[texts] - starts[0];
    round_rows(x, rows, hidden, numbers, scales);
    for (int head = 0; head < hidden / HEAD; head++) { /* its queries, keys and values are still in the cache */
        panels(&l->qkv, head * OF_HEAD, (head + 1) * OF_HEAD, numbers, scales, rows, STORE, wide, 3 * HEAD);
        for (int text = 0; text < texts; text++) {
            size_t row = starts[text] - starts[0];
            attention(wide + row * 3 * HEAD, starts[text + 1] - starts[text], hidden, scratch,
                      attended + row * hidden + head * HEAD);
        }
    }
    linear(&l->out, attended, rows, numbers, scales, ADD, x);
    norm(x, rows, hidden, l->norms, epsilon);
    linear(&l->up, x, rows, numbers, scales, GELU, wide);
    linear(&l->down, wide, rows, numbers, scales, ADD, x);
    norm(x, rows, hidden, l->norms + 2 * hidden, epsilon);
}

/* words, places: tables of vectors, [words or places, hidden]. norms: weight and bias, [2, hidden] */
typedef struct {
    const float *words, *places, *norms;
    const Layer *layers;
    int32_t num_layers, hidden;
    float epsilon;
} Network;

/* tokens: of all texts. starts: first token of each text, and the end. states: [tokens, hidden] */
typedef struct {
    const Network *network;
    const int32_t *tokens, *starts;
    int32_t texts, most, is_urgent; /* most: rows of a bundle of several texts */
    float *states;
    atomic_int next, failed; /* text */
} Work;

/* Takes texts for a bundle. Returns its first text, and its end; `texts` if all are taken. */
static int take(Work *w, int *end) {
    for (int first = atomic_load(&w->next); first < w->texts; first = atomic_load(&w->next)) {
        for (*end = first + 1; *end < w->texts && w->starts[*end + 1] - w->starts[first] <= w->most; ++*end);
        if (atomic_compare_exchange_strong(&w->next, &first, *end)) return first;
    }
    return w->texts;
}

static void *encode_bundles(void *work) {
    Work *w = work;
    const Network *n = w->network;
    size_t hidden = n->hidden, up = n->layers[0].up.outputs, width = up > 3 * hidden ? up : 3 * hidden;
#ifdef __linux__
    if (!w->is_urgent) setpriority(PRIO_PROCESS, syscall(SYS_gettid), 10); /* of this thread */
#endif
    for (int end, first; (first = take(w, &end)) < w->texts;) {
        size_t start = w->starts[first], rows = w->starts[end] - start;
        size_t of_attention = (2 * HEAD + ROWS) * (rows + PANEL);
        float *wide = malloc((rows * (width + hidden + 1) + of_attention) * sizeof(float) + rows * width * sizeof(int16_t));
        if (!wide) {
            w->failed = 1;
            continue;
        }
        float *x = w->states + start * hidden, *attended = wide + rows * width, *scratch = attended + rows * hidden;
        float *scales = scratch + of_attention;
        for (int text = first; text < end; text++)
            for (int at = w->starts[text]; at < w->starts[text + 1]; at++)
                for (size_t i = 0; i < hidden; i++)
                    w->states[at * hidden + i] = n->words[w->tokens[at] * hidden + i] +
                                                 n->places[(at - w->starts[text]) * hidden + i];
        norm(x, rows, hidden, n->norms, n->epsilon);
        for (int layer = 0; layer < n->num_layers; layer++)
            run(n->layers + layer, hidden, n->epsilon, x, w->starts + first, end - first, wide, attended, scratch,
                (int16_t *)(scales + rows), scales);
        free(wide);
    }
    return NULL;
}

const int warmdesk_panel = PANEL;

/* Encodes texts in `threads` threads of low priority. is_urgent: in the calling thread, with others of equal priority
   if there is enough to do. Returns 0, or 1 if there is no memory. */
int warmdesk_encode(const Network *network, const int32_t *tokens, const int32_t *starts, int texts, int threads,
                    int is_urgent, float *states) {
    Work work = {network, tokens, starts, texts, BUNDLE, is_urgent, states, 0, 0};
    pthread_t team[MOST_THREADS];
    int started = 0, others = !is_urgent ? threads : starts[texts] > BUNDLE ? threads - 1 : 0;
    if (others > 0 && starts[texts] / (2 * threads) < BUNDLE) work.most = starts[texts] / (2 * threads);
    while (started < others && started < MOST_THREADS &&
           !pthread_create(team + started, NULL, encode_bundles, &work))
        started++;
    if (!started) work.is_urgent = 1; /* else the caller's priority would change */
    if (work.is_urgent) encode_bundles(&work);
    for (int i = 0; i < started; i++) pthread_join(team[i], NULL);
    return work.failed;
}
