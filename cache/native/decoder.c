/* One forward pass through a decoder of the Llama kind, at the speed of memory or of the processor's products.

The whole pass is one call and one parallel region: no tensor is made, and threads meet nine times per layer. The residual
stream is float32. */

#include "scoring.h"

/* Memory of a pass that all threads share, and how much each has besides. */
typedef struct {
    Unit *units;
    int32_t *first_unit;
    Parts parts;
    float *x, *qkv, *partials, *lse;
    Rounded *lows;
    void *normed, *attended, *gated; /* activations */
    char *private_memory;
    size_t private_bytes;
    int *given_up; /* the pass */
} Shared;

typedef struct {
    activation *queries, *weights;
    float *scores, *means;
} Private;

/* A piece of memory that is handed out bit by bit; with no memory, only what is taken is counted. */
typedef struct {
    char *memory;
    size_t taken;
} Space;

static void *take(Space *space, size_t bytes) {
    void *found = space->memory ? space->memory + space->taken : NULL;
    space->taken += (bytes + 63) & ~(size_t)63;
    return found;
}

static int largest(int a, int b) { return a > b ? a : b; }

static Private lay_out_private(const Model *m, const Step *s, int most_readers, Space *space) {
    size_t queries = (size_t)most_readers * (m->heads / m->kv_heads);
    return (Private){
        .queries = take(space, queries * m->head_dim * sizeof(float)),
        .weights = take(space, queries * largest(UNIT * sizeof(activation), m->head_dim * sizeof(float))),
        .scores = take(space, queries * UNIT * sizeof(float)),
        .means = take(space, s->num_scored ? (size_t)most_readers * UNIT * sizeof(float) : 0),
    };
}

static Shared lay_out(const Model *m, const Step *s, int most_readers, Cuts cuts, Space *space) {
    size_t rows = s->rows, q_width = m->heads * m->head_dim, kv_width = m->kv_heads * m->head_dim;
    Space private = {0};
    lay_out_private(m, s, most_readers, &private);
    return (Shared){
        .units = take(space, cuts.units * sizeof(Unit)),
        .first_unit = take(space, (rows / WINDOW + 2) * sizeof(int32_t)),
        .parts = {take(space, (size_t)cuts.partials * 3 * sizeof(int32_t)), take(space, (rows + 2) * sizeof(int32_t))},
        .x = take(space, rows * m->hidden * sizeof(float)),
        .qkv = take(space, rows * largest(q_width + 2 * kv_width, m->hidden) * sizeof(float)),
        .partials = take(space, (size_t)cuts.most_partials * m->heads * (m->head_dim + 2) * sizeof(float)),
        .lse = take(space, s->num_scored ? rows * m->heads * sizeof(float) : 0),
        .lows = take(space, m->has_adapter ? (rows + TILE - 1) / TILE * LOWS * sizeof(Rounded) : 0),
        .normed = take(space, rows * m->hidden * sizeof(activation)),
        .attended = take(space, rows * q_width * sizeof(activation)),
        .gated = take(space, rows * m->layers[0].down.inputs * sizeof(activation)),
        .private_bytes = private.taken,
        .private_memory = take(space, s->threads * private.taken),
    };
}

/* Queries and keys of one row and head are normed and rotated in place; keys and values go into the arena. */
static void finish_head(const Model *m, const Step *s, const Layer *l, int layer, int row, int head, float *qkv) {
    int d = m->head_dim, half = m->rotary / 2, kv_width = m->kv_heads * d;
    int is_value = head >= m->heads + m->kv_heads, is_key = head >= m->heads && !is_value;
    float *vector = qkv + (size_t)row * (m->heads * d + 2 * kv_width) + head * d;
    if (!is_value) {
        const float *weight = is_key ? l->key_norm : l->query_norm;
        if (weight) norm_head(vector, weight, d, m->epsilon);
        const float *cos = l->is_local ? s->local_cos : s->cos, *sin = l->is_local ? s->local_sin : s->sin;
        rotate(vector, cos + row * half, sin + row * half, half, vector);
    }
    if (is_key || is_value) {
        kv *to = (is_key ? s->keys : s->values)[layer] + (size_t)s->slots[row] * kv_width +
                 (head - m->heads - (is_value ? m->kv_heads : 0)) * d;
        for (int i = 0; i < d; i++) to[i] = to_kv(vector[i]);
    }
}

/* Adds what a layer makes of x to the residual stream, normed before if there is a norm. */
static void add_linear(const Model *m, const Linear *l, const void *x, int rows, const float *post_norm, const Shared *all, Team *team) {
    linear(l, x, rows, post_norm ? STORE : ADD, 0, post_norm ? all->qkv : all->x, all->lows, team);
    meet(team);
    if (!post_norm) return;
    FOR_PART(row, rows, team)
        add_normed(all->qkv + row * m->hidden, post_norm, m->hidden, m->epsilon, all->x + row * m->hidden);
    meet(team);
}

/* What every thread runs, for one layer. */
static void run_layer(const Model *m, const Step *s, const Shared *all, const Private *mine, int most_readers, int layer,
                      Team *team) {
    const Layer *l = m->layers + layer;
    int rows = s->rows, hidden = m->hidden, heads = m->heads + 2 * m->kv_heads, width = heads * m->head_dim;
    FOR_PART(row, rows, team) norm(all->x + row * hidden, l->attention_norm, hidden, m->epsilon, l->qkv.kind, all->normed, row, rows);
    meet(team);
    linear(&l->qkv, all->normed, rows, STORE, 0, all->qkv, all->lows, team);
    meet(team);
    FOR_PART(i, (long)rows * heads, team) finish_head(m, s, l, layer, i / heads, i % heads, all->qkv);
    for (int window = 0; window * WINDOW < rows; window++) {
        int first = window * WINDOW, count = rows - first < WINDOW ? rows - first : WINDOW;
        meet_before(team, all->first_unit[window]);
        for (int unit; (unit = handed_out(team)) < all->first_unit[window + 1];) {
            const Unit *one = all->units + unit;
            int queries = one->readers * (m->heads / m->kv_heads);
            if (queries <= FEW && queries * m->kv_heads <= most_readers * (m->heads / m->kv_heads)) {
                attend_few(m, s, one, layer, all->qkv, width, (Along *)mine->queries, mine->scores, (Along *)mine->weights,
                           all->partials);
                continue;
            }
            touch(m, s, one, layer);
            for (int head = 0; head < m->kv_heads; head++)
                attend(m, s, one, head, layer, all->qkv, width, mine->queries, mine->scores, mine->weights, all->partials);
        }
        meet(team);
        FOR_PART(i, (long)count * m->heads, team) {
            int row = first + i / m->heads, head = i % m->heads;
            float lse = merge(m, all->parts, row, head, all->partials, l->out.kind, all->attended, rows);
            if (s->num_scored) all->lse[(size_t)row * m->heads + head] = lse;
        }
    }
    meet(team);
    for (int run = 0; run < s->num_scored && layer >= s->first_scored && layer <= s->last_scored; run++) {
        for (int unit; (unit = handed_out(team)) * UNIT < s->scored[run].item.length;)
            add_squares(m, s, s->scored + run, unit * UNIT, layer, all->qkv, width, all->lse, most_readers, mine->queries,
                        mine->scores, mine->means);
        meet(team);
    }
    add_linear(m, &l->out, all->attended, rows, l->attention_post_norm, all, team);
    FOR_PART(row, rows, team) norm(all->x + row * hidden, l->mlp_norm, hidden, m->epsilon, l->gate_up.kind, all->normed, row, rows);
    meet(team);
    linear(&l->gate_up, all->normed, rows, GATE, l->down.kind, all->gated, all->lows, team);
    meet(team);
    add_linear(m, &l->down, all->gated, rows, l->mlp_post_norm, all, team);
}

/* What every thread runs. */
static void run_pass(const Model *m, const Step *s, const Shared *all, const Private *mine, int most_readers, Team *team) {
    FOR_PART(row, s->rows, team) {
        float *x = all->x + row * m->hidden;
        warmdesk_unpack_row(m->embedding_type, m->embedding + s->tokens[row] * row_bytes(m->embedding_type, m->hidden), m->hidden, x);
        for (int i = 0; m->embedding_scale != 1 && i < m->hidden; i++) x[i] *= m->embedding_scale;
    }
    meet(team);
    for (int layer = 0; layer < s->num_layers; layer++) {
        if (s->gives_up) {
            if (team->thread == 0) *all->given_up = s->gives_up();
            meet(team);
            if (*all->given_up) return;
        }
        run_layer(m, s, all, mine, most_readers, layer, team);
    }
    FOR_PART(i, s->num_outputs, team)
        norm(all->x + (size_t)s->outputs[i] * m->hidden, m->final_norm, m->hidden, m->epsilon, m->head.kind, all->normed, i,
             s->num_outputs);
    meet(team);
    if (s->num_outputs) linear(&m->head, all->normed, s->num_outputs, STORE, 0, s->logits, all->lows, team);
}

/* How many outputs a panel has. */
int warmdesk_lanes(void) { return LANES; }

/* Returns 0; 1 if there is no memory; 2 if the pass was given up, and the keys and values of its rows are incomplete. */
int warmdesk_step(const Model *m, const Step *s) {
    int most_readers = largest(1, QUERIES / (m->heads / m->kv_heads)), given_up = 0;
    Cuts cuts = cut(s, most_readers, NULL, NULL);
    Space space = {0};
    lay_out(m, s, most_readers, cuts, &space);
    if (posix_memalign((void **)&space.memory, 64, space.taken)) return 1;
    space.taken = 0;
    Shared all = lay_out(m, s, most_readers, cuts, &space);
    all.given_up = &given_up;
    cut(s, most_readers, all.units, all.first_unit);
    memset(all.parts.first_part, 0, (s->rows + 2) * sizeof(int32_t));
    find_parts(s, all.units, cuts.units, all.parts);
    Meeting meeting = {0};

#pragma omp parallel num_threads(s->threads)
    {
#ifdef _OPENMP
        Team team = {&meeting, omp_get_thread_num(), omp_get_num_threads(), FEWEST_LOOKS};
#else
        Team team = {&meeting, 0, 1, FEWEST_LOOKS};
#endif
        Space own = {all.private_memory + team.thread * all.private_bytes, 0};
        Private mine = lay_out_private(m, s, most_readers, &own);
        run_pass(m, s, &all, &mine, most_readers, &team);
    }
    free(space.memory);
    return given_up ? 2 : 0;
}

static int32_t likeliest(const float *logits, long count) {
    long best = 0;
    floats most = (floats){} + logits[0];
    for (long i = 0; i < count; i += LANES) most = larger(most, *(const floats_in_memory *)(logits + i));
    for (int i = 0; i < LANES; i++) most = larger(most, (floats){} + most[i]);
    while (best < count - 1 && logits[best] != most[0]) best++;
    return best;
}

static int is_among(int32_t token, const int32_t *tokens, int count) {
    for (int i = 0; i < count; i++)
        if (tokens[i] == token) return 1;
    return 0;
}

/* Returns how many steps were computed; 0 if there is no memory for one. */
int warmdesk_decode(const Model *m, const Step *first, const Decoding *d) {
    Step s = *first;
    for (int step = 0; step < d->steps; step++) {
        if (step && d->is_late()) return step;
        if (warmdesk_step(m, &s)) return step;
        int32_t *chosen = d->chosen + step * s.rows, is_over = 0;
        for (int row = 0; row < s.rows; row++) {
            chosen[row] = likeliest(s.logits + (size_t)row * m->head.outputs, m->head.outputs);
            is_over |= is_among(chosen[row], d->ends, d->num_ends);
            Item *own = d->items + d->grown[row];
            own->length++, d->readers[own->first_reader].length++;
        }
        if (is_over) return step + 1;
        int angles = s.rows * m->rotary / 2;
        s.tokens = chosen, s.slots += s.rows, s.positions += s.rows;
        s.cos += angles, s.sin += angles, s.local_cos += angles, s.local_sin += angles;
    }
    return d->steps;
}
