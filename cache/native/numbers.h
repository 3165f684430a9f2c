/* Numbers: vectors as wide as the CPU's registers, bfloat16, and products of pairs.

Written in GCC's vector extensions, so it runs on any CPU. AVX512-BF16 is used if the CPU has it and keys and values are
bfloat16. */

#pragma once
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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

#define HIGH 0xffff0000u

#ifdef KV_FLOAT32
typedef float kv;
#else
typedef uint16_t kv; /* bfloat16 */
#endif

/* Vectors as wide as the CPU's registers: the compiler makes slow code for wider ones. */
typedef float floats __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef int8_t bytes __attribute__((vector_size(LANES)));
typedef floats floats_in_memory __attribute__((aligned(4), may_alias));
typedef ints ints_in_memory __attribute__((aligned(4), may_alias));
typedef words words_in_memory __attribute__((aligned(2), may_alias));

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

/* Adds the products of a pair of inputs for LANES outputs: both at once in bfloat16, or one by one in float32. */
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
