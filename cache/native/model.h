/* A model and one pass through it, as decoder.py describes them. Pointers to a model stay valid as long as it does. */

#pragma once
#include "repack.h"
#include "rows.h"

typedef struct {
    Linear qkv, out, gate_up, down; /* gate_up: panels of both in turn */
    const float *attention_norm, *mlp_norm;
    const float *query_norm, *key_norm, *attention_post_norm, *mlp_post_norm; /* NULL: none. post: of what is added */
    int32_t is_local; /* its rows see only keys of the window, by angles of its own */
} Layer;

typedef struct {
    int32_t num_layers, hidden, heads, kv_heads, head_dim, rotary; /* rotary: turned dimensions of a head */
    int32_t embedding_type, has_adapter, window;
    float epsilon, scale, embedding_scale, cap; /* cap: of scores, softly; 0: none */
    const Layer *layers;
    const uint8_t *embedding; /* [vocabulary, hidden], of a type of GGUF files: `embedding_type` */
    const float *final_norm;
    Linear head;
} Model;

typedef struct {
    int32_t start, length;         /* slots */
    int32_t first_reader, readers; /* its readers: a part of the pass's list, by ascending rows */
    int32_t first_hidden, hidden;  /* keys that no reader sees, counted from `start`: a part of the pass's list */
} Item;

typedef struct {
    int32_t row;    /* of the pass */
    int32_t length; /* how many of the item's keys it sees */
    int32_t turn;   /* which rotation back, -1: none */
} Reader;

/* A run whose keys are scored by some rows. */
typedef struct {
    Item item;      /* readers, hidden: of the lists of scored ones */
    int32_t stride; /* numbers of a layer in `squares` */
    float *squares; /* by scored layer: of each key, what is added to */
} Scored;

typedef struct {
    int32_t rows, num_items, num_readers, num_outputs, num_scored, first_scored, last_scored; /* scored layers */
    int32_t num_layers;                      /* how many are run: fewer for a pass that only scores */
    const int32_t *tokens, *slots, *outputs; /* outputs: rows whose logits are wanted */
    const float *cos, *sin;           /* [rows, rotary / 2] of new queries and keys */
    const float *local_cos, *local_sin;        /* the same for local layers */
    const int64_t *positions; /* ids of rows */
    int64_t *key_positions;   /* and of slots, to which those of the rows are added */
    const float *turn_cos, *turn_sin; /* [turns, rotary / 2] */
    const Item *items;
    const Reader *readers;
    const int32_t *hidden;
    const Scored *scored;
    const Reader *scored_readers;
    const int32_t *scored_hidden;
    kv *const *keys, *const *values; /* by layer: [slots, kv_heads, head_dim] */
    float *logits;                   /* [num_outputs, vocabulary] */
    int32_t threads;
    int (*gives_up)(void); /* asked before every layer whether the pass shall end; NULL: it never does */
} Step;

/* Steps of decoding after each other, with one row for each answer and outputs of all rows. tokens, slots, positions and
   angles of the first step are the pass's; those of later steps follow in memory, except the tokens. */
typedef struct {
    int32_t steps, num_ends;
    const int32_t *ends;  /* tokens after which no step follows */
    const int32_t *grown; /* of each row, the item whose last key is its own */
    Item *items;          /* those of the pass, and its readers: the grown ones get a key with each step */
    Reader *readers;
    int32_t *chosen;      /* [steps, rows]: the likeliest tokens */
    int (*is_late)(void); /* asked before a further step */
} Decoding;
