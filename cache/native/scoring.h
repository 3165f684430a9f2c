/* Scores of keys: each key's attention weights, averaged over the heads, then squared and summed over the rows. */

#pragma once
#include "attention.h"

/* Adds scores of the keys `first` .. `first` + UNIT - 1 of a run, for all scored rows. lse [rows, heads]: base-2
   logarithms of the rows' sums of weights. means: memory for [readers, UNIT] */
static void add_squares(const Model *m, const Step *s, const Scored *run, int first, int layer, const float *qkv, int width,
                        const float *lse, int most_readers, activation *queries, float *scores, float *means) {
    int d = m->head_dim, group = m->heads / m->kv_heads;
    const Item *item = &run->item;
    int keys = item->length - first < UNIT ? item->length - first : UNIT;
    const kv *k = s->keys[layer] + (size_t)(item->start + first) * m->kv_heads * d;
    float *squares = run->squares + (size_t)(layer - s->first_scored) * run->stride + first;
    for (int at = 0; at < item->readers; at += most_readers) {
        int readers = item->readers - at < most_readers ? item->readers - at : most_readers;
        const Reader *reader = s->scored_readers + item->first_reader + at;
        memset(means, 0, (size_t)readers * UNIT * sizeof(float));
        for (int kv_head = 0; kv_head < m->kv_heads; kv_head++) {
            gather_queries(m, s, reader, readers, kv_head, qkv, width, queries);
            score(m, k + kv_head * d, keys, queries, readers * group, scores);
            hide(item, s->scored_hidden, first, keys, readers * group, scores);
            for (int r = 0; r < readers * group; r++) {
                float whole = lse[(size_t)reader[r / group].row * m->heads + kv_head * group + r % group];
                for (int j = 0; j < keys; j += LANES)
                    *(floats_in_memory *)(means + r / group * UNIT + j) +=
                        exp2_of(*(const floats_in_memory *)(scores + r * UNIT + j) - whole);
            }
        }
        for (int r = 0; r < readers; r++) {
            int seen = reader[r].length - first < keys ? reader[r].length - first : keys;
            for (int j = 0; j < seen; j++) {
                float mean = means[r * UNIT + j] / m->heads;
                squares[j] += mean * mean;
            }
        }
    }
}
