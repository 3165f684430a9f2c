/* Computations on a single row: norms and rotations by position. */

#pragma once
#include "linear.h"

static float norm_factor(const float *x, int n, float epsilon) {
    floats squares = {};
    for (int i = 0; i < n; i += LANES) {
        floats part = *(const floats_in_memory *)(x + i);
        squares += part * part;
    }
    return 1.0f / sqrtf(sum(squares) / n + epsilon);
}

/* Stores the norm of one row x as row `row` of the activations for weights of a kind. */
static void norm(const float *x, const float *weight, int n, float epsilon, Kind kind, void *out, int row, int rows) {
    float factor = norm_factor(x, n, epsilon);
    for (int i = 0; i < n; i += COLUMNS) {
        float part[COLUMNS];
        for (int k = 0; k < COLUMNS; k++) part[k] = x[i + k] * factor * weight[i + k];
        store_activations(part, COLUMNS, kind, out, row, rows, n, i);
    }
}

static void norm_head(float *x, const float *weight, int n, float epsilon) {
    float factor = norm_factor(x, n, epsilon);
    for (int i = 0; i < n; i++) x[i] *= factor * weight[i];
}

static void add_normed(const float *x, const float *weight, int n, float epsilon, float *to) {
    float factor = norm_factor(x, n, epsilon);
    for (int i = 0; i < n; i++) to[i] += x[i] * factor * weight[i];
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
