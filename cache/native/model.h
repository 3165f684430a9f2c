/* A model and one pass through it; decoder.py fills these. A model's pointers are valid as long as the model. */

#pragma once
#include "repack.h"
#include "rows.h"

typedef struct {
    Linear qkv, out, gate_up, down; /* gate_up: panels of gate and up alternate */
    const float *attention_norm, *mlp_norm;
    const float *query_norm, *key_norm, *attention_post_norm, *mlp_post_norm; /* NULL: none. post: for results before they are added */
    int32_t is_local; /* rows see only keys in the window, with the local angles */
} Layer;

typedef struct {
    int32_t num_layers, hidden, heads, kv_heads, head_dim, rotary; /* rotary: rotated dimensions of a head */
    int32_t embedding_type, has_adapter, window;
    float epsilon, scale, embedding_scale, cap; /* cap: soft limit of scores; 0: none */
    const Layer *layers;
    const uint8_t *embedding; /* [vocabulary, hidden], in the GGUF type `embedding_type` */
    const float *final_norm;
    Linear head;
} Model;

typedef struct {
    int32_t start, length;         /* slots */
    int32_t first_reader, readers; /* its readers: a range of the pass's list, rows ascending */
    int32_t first_hidden, hidden;  /* keys that no reader sees, relative to `start`: a range of the pass's list */
} Item;

typedef struct {
    int32_t row;    /* of the pass */
    int32_t length; /* number of the item's keys that it sees */
    int32_t turn;   /* index of its backward rotation; -1: none */
} Reader;

/* A run whose keys are scored by some rows. */
typedef struct {
    Item item;      /* readers, hidden: ranges of scored_readers, scored_hidden */
    int32_t stride; /* numbers per layer in `squares` */
    float *squares; /* [scored layers, stride]: scores of the keys are added here */
} Scored;

typedef struct {
    int32_t rows, num_items, num_readers, num_outputs, num_scored, first_scored, last_scored; /* first, last: layers */
    int32_t num_layers;                      /* number of layers to run: fewer for a pass that only scores */
    const int32_t *tokens, *slots, *outputs; /* outputs: rows whose logits are needed */
    const float *cos, *sin;           /* [rows, rotary / 2], for new queries and keys */
    const float *local_cos, *local_sin;        /* the same for local layers */
    const int64_t *positions; /* position ids of rows */
    int64_t *key_positions;   /* position ids of slots; those of the rows are written */
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
    int (*gives_up)(void); /* called before every layer; 1 ends the pass. NULL: not called */
} Step;

/* Consecutive decoding steps, with one row per answer and outputs of all rows. The first step is the pass's. Slots,
   positions and angles of later steps follow in memory; tokens of later steps are the chosen ones. */
typedef struct {
    int32_t steps, num_ends;
    const int32_t *ends;  /* stop tokens: no step follows */
    const int32_t *grown; /* for each row, index of the item whose last key is the row's own */
    Item *items;          /* items and readers of the pass; grown items get one key in each step */
    Reader *readers;
    int32_t *chosen;      /* [steps, rows]: the most likely tokens */
    int (*is_late)(void); /* called before each further step; 1 ends decoding */
} Decoding;
