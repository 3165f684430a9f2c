/* One forward pass through a decoder of the Llama kind. Memory or the CPU's multiplications limit its speed.

The whole pass is one call and makes no tensors. Threads share its stages. A decoding step has five stages per layer,
because each thread prepares the few rows for itself. The residual stream is float32. */

#include "scoring.h"
#include "team.h"

/* Stages in order. ATTEND and MERGE run for each window of rows, QKV_READY to DOWN_POST for each layer. READY: prepares
   the input of the next stage; not in a short pass. POST: norms a result and adds it. */
typedef enum {
    EMBED, QKV_READY, QKV, ATTEND, MERGE, SCORE, OUT_READY, OUT, OUT_POST, GATE_UP_READY, GATE_UP, DOWN_READY, DOWN, DOWN_POST,
    HEAD_READY, HEAD
} Stage;

enum { SHORT = 4 }; /* for up to 4 rows, each thread prepares all inputs: faster than waiting for others */

typedef struct {
    activation *queries, *weights;
    float *scores, *means;
    void *inputs; /* inputs of stage number `ready`, in a short pass */
    Rounded *lows;
    int ready; /* compared with Pass.count */
} Private;

/* A pass, and its memory. inputs: activations of the next product. */
typedef struct {
    const Model *m;
    const Step *s;
    int most_readers, stage, layer, window, count, is_given_up; /* count: stages begun so far */
    Unit *units;
    int32_t *first_unit;
    Parts parts;
    float *x, *qkv, *partials, *lse;
    Rounded *lows;
    void *inputs, *gated;
    Private *threads;
} Pass;

/* Memory from which `take` returns one piece after another. If memory is NULL, `take` only counts the bytes. */
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
    size_t queries = (size_t)most_readers * (m->heads / m->kv_heads), inputs = largest(m->hidden, m->heads * m->head_dim);
    return (Private){
        .queries = take(space, queries * m->head_dim * sizeof(float)),
        .weights = take(space, queries * largest(UNIT * sizeof(activation), m->head_dim * sizeof(float))),
        .scores = take(space, queries * UNIT * sizeof(float)),
        .means = take(space, s->num_scored ? (size_t)most_readers * UNIT * sizeof(float) : 0),
        .inputs = take(space, SHORT * inputs * sizeof(activation)),
        .lows = take(space, m->has_adapter ? LOWS * sizeof(Rounded) : 0),
    };
}

static Pass lay_out(const Model *m, const Step *s, int most_readers, Cuts cuts, int threads, Space *space) {
    size_t rows = s->rows, q_width = m->heads * m->head_dim, kv_width = m->kv_heads * m->head_dim;
    Pass p = {
        .m = m, .s = s, .most_readers = most_readers, .stage = EMBED - 1,
        .units = take(space, cuts.units * sizeof(Unit)),
        .first_unit = take(space, (rows / WINDOW + 2) * sizeof(int32_t)),
        .parts = {take(space, (size_t)cuts.partials * 3 * sizeof(int32_t)), take(space, (rows + 2) * sizeof(int32_t))},
        .x = take(space, rows * m->hidden * sizeof(float)),
        .qkv = take(space, rows * largest(q_width + 2 * kv_width, m->hidden) * sizeof(float)),
        .partials = take(space, (size_t)cuts.most_partials * m->heads * (m->head_dim + 2) * sizeof(float)),
        .lse = take(space, s->num_scored ? rows * m->heads * sizeof(float) : 0),
        .lows = take(space, m->has_adapter ? (rows + TILE - 1) / TILE * LOWS * sizeof(Rounded) : 0),
        .inputs = take(space, rows * largest(m->hidden, q_width) * sizeof(activation)),
        .gated = take(space, rows * m->layers[0].down.inputs * sizeof(activation)),
        .threads = take(space, threads * sizeof(Private)),
    };
    for (int i = 0; i < threads; i++) {
        Private one = lay_out_private(m, s, most_readers, space);
        if (space->memory) p.threads[i] = one;
    }
    return p;
}

/* Norms and rotates the query or key of one row and head in place. Stores keys and values in the arena. */
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

static const Linear *linear_of(const Pass *p, Stage stage) {
    const Layer *l = p->m->layers + p->layer;
    return stage == QKV ? &l->qkv : stage == OUT ? &l->out : stage == GATE_UP ? &l->gate_up : stage == DOWN ? &l->down : &p->m->head;
}

static const float *post_norm_of(const Pass *p, Stage stage) {
    const Layer *l = p->m->layers + p->layer;
    return stage == OUT || stage == OUT_POST ? l->attention_post_norm : l->mlp_post_norm;
}

static int rows_of(const Pass *p, Stage stage) { return stage >= HEAD_READY ? p->s->num_outputs : p->s->rows; }

/* Returns the number of output groups of a task. QKV tasks have whole heads, because heads are rotated as a whole. */
static int span_of(const Pass *p, Stage stage) {
    int span = 1;
    while (stage == QKV && span * OUTPUTS % p->m->head_dim) span++;
    return span;
}

/* Prepares the rows of a tile as input for the product of a stage. */
static void ready_tile(const Pass *p, Stage stage, int tile, void *inputs, Rounded *lows) {
    const Model *m = p->m;
    const Layer *l = m->layers + p->layer;
    const Linear *to = linear_of(p, stage);
    int rows = rows_of(p, stage), in_tile = rows_of_tile(tile, rows);
    for (int row = tile * TILE; row < tile * TILE + in_tile && stage != DOWN; row++) {
        for (int head = 0; head < m->heads && stage == OUT && rows <= SHORT; head++)
            merge(m, p->parts, row, head, p->partials, to->kind, inputs, rows);
        if (stage == OUT) continue;
        const float *weight = stage == QKV ? l->attention_norm : stage == GATE_UP ? l->mlp_norm : m->final_norm;
        const float *x = p->x + (size_t)(stage == HEAD ? p->s->outputs[row] : row) * m->hidden;
        norm(x, weight, m->hidden, m->epsilon, to->kind, inputs, row, rows);
    }
    if (has_lows(to)) find_lows(to, (const Rounded *)inputs + (size_t)tile * TILE * to->inputs / COLUMNS, in_tile, lows + tile * LOWS);
}

static void run_product(Pass *p, Stage stage, int task, Private *mine) {
    const Model *m = p->m;
    const Linear *l = linear_of(p, stage);
    int rows = rows_of(p, stage), span = span_of(p, stage), is_post = (stage == OUT || stage == DOWN) && post_norm_of(p, stage);
    void *inputs = stage == DOWN ? p->gated : rows <= SHORT ? mine->inputs : p->inputs;
    Rounded *lows = rows <= SHORT ? mine->lows : p->lows;
    if (rows <= SHORT && mine->ready != p->count) {
        ready_tile(p, stage, 0, inputs, lows);
        mine->ready = p->count;
    }
    if (stage == GATE_UP) linear(l, inputs, rows, GATE, m->layers[p->layer].down.kind, p->gated, lows, span, task);
    else if (stage == HEAD) linear(l, inputs, rows, STORE, 0, p->s->logits, lows, span, task);
    else if (stage == QKV || is_post) linear(l, inputs, rows, STORE, 0, p->qkv, lows, span, task);
    else linear(l, inputs, rows, ADD, 0, p->x, lows, span, task);
    if (stage != QKV) return;
    int parts = (rows + TILE * TILES - 1) / (TILE * TILES), first = task % parts * TILE * TILES, heads = m->heads + 2 * m->kv_heads;
    int each = span * OUTPUTS / m->head_dim, first_head = task / parts * each;
    for (int row = first; row < rows && row < first + TILE * TILES; row++)
        for (int head = first_head; head < heads && head < first_head + each; head++)
            finish_head(m, p->s, m->layers + p->layer, p->layer, row, head, p->qkv);
}

static void run_unit(const Pass *p, int task, const Private *mine) {
    const Model *m = p->m;
    const Unit *one = p->units + p->first_unit[p->window] + task;
    int group = m->heads / m->kv_heads, queries = one->readers * group, width = (m->heads + 2 * m->kv_heads) * m->head_dim;
    if (queries <= FEW && queries * m->kv_heads <= p->most_readers * group) {
        attend_few(m, p->s, one, p->layer, p->qkv, width, (Along *)mine->queries, mine->scores, (Along *)mine->weights, p->partials);
        return;
    }
    touch(m, p->s, one, p->layer);
    for (int head = 0; head < m->kv_heads; head++)
        attend(m, p->s, one, head, p->layer, p->qkv, width, mine->queries, mine->scores, mine->weights, p->partials);
}

static void run_score(const Pass *p, int task, const Private *mine) {
    const Model *m = p->m;
    const Scored *run = p->s->scored;
    for (int units; task >= (units = (run->item.length + UNIT - 1) / UNIT); run++) task -= units;
    add_squares(m, p->s, run, task * UNIT, p->layer, p->qkv, (m->heads + 2 * m->kv_heads) * m->head_dim, p->lse, p->most_readers,
                mine->queries, mine->scores, mine->means);
}

static void run_task(void *of, int task, int thread) {
    Pass *p = of;
    const Model *m = p->m;
    Private *mine = p->threads + thread;
    switch ((Stage)p->stage) {
    case ATTEND: run_unit(p, task, mine); return;
    case SCORE: run_score(p, task, mine); return;
    case QKV: case OUT: case GATE_UP: case DOWN: case HEAD: run_product(p, p->stage, task, mine); return;
    case QKV_READY: case OUT_READY: case GATE_UP_READY: case DOWN_READY: case HEAD_READY:
        ready_tile(p, p->stage + 1, task, p->stage == DOWN_READY ? p->gated : p->inputs, p->lows);
        return;
    case MERGE:
        for (int head = 0, row = p->window * WINDOW + task; head < m->heads; head++) {
            float lse = merge(m, p->parts, row, head, p->partials, m->layers[p->layer].out.kind, p->inputs, p->s->rows);
            if (p->s->num_scored) p->lse[(size_t)row * m->heads + head] = lse;
        }
        return;
    case EMBED: case OUT_POST: case DOWN_POST: break;
    }
    for (int row = task * TILE; row < p->s->rows && row < (task + 1) * TILE; row++) {
        float *x = p->x + (size_t)row * m->hidden;
        if (p->stage != EMBED) {
            add_normed(p->qkv + (size_t)row * m->hidden, post_norm_of(p, p->stage), m->hidden, m->epsilon, x);
            continue;
        }
        warmdesk_unpack_row(m->embedding_type, m->embedding + p->s->tokens[row] * row_bytes(m->embedding_type, m->hidden), m->hidden, x);
        for (int i = 0; m->embedding_scale != 1 && i < m->hidden; i++) x[i] *= m->embedding_scale;
    }
}

static int count_tasks(const Pass *p) {
    const Step *s = p->s;
    int rows = rows_of(p, p->stage), tiles = (rows + TILE - 1) / TILE, left = rows - p->window * WINDOW, units = 0;
    switch ((Stage)p->stage) {
    case EMBED: return tiles;
    case QKV: case OUT: case GATE_UP: case DOWN: case HEAD: return linear_tasks(linear_of(p, p->stage), rows, span_of(p, p->stage));
    case QKV_READY: case GATE_UP_READY: case HEAD_READY: return rows <= SHORT ? 0 : tiles;
    case OUT_READY: case DOWN_READY: return rows <= SHORT || !has_lows(linear_of(p, p->stage + 1)) ? 0 : tiles;
    case OUT_POST: case DOWN_POST: return post_norm_of(p, p->stage) ? tiles : 0;
    case ATTEND: return p->first_unit[p->window + 1] - p->first_unit[p->window];
    case MERGE: return rows <= SHORT && !s->num_scored ? 0 : left < WINDOW ? left : WINDOW;
    case SCORE:
        for (int run = 0; run < s->num_scored && p->layer >= s->first_scored && p->layer <= s->last_scored; run++)
            units += (s->scored[run].item.length + UNIT - 1) / UNIT;
        return units;
    }
    return 0;
}

/* Begins the next stage that has tasks. Returns its number of tasks. */
static int next_stage(void *of) {
    Pass *p = of;
    for (int tasks; p->stage < HEAD;) {
        if (p->stage == MERGE && (p->window + 1) * WINDOW < p->s->rows) p->window++, p->stage = ATTEND;
        else if (p->stage == DOWN_POST && p->layer + 1 < p->s->num_layers) p->layer++, p->window = 0, p->stage = QKV_READY;
        else p->stage++;
        if (p->stage == QKV_READY && p->s->gives_up && (p->is_given_up = p->s->gives_up())) return 0;
        if ((tasks = count_tasks(p))) return p->count++, tasks;
    }
    return 0;
}

/* Returns the number of outputs of a panel. */
int warmdesk_lanes(void) { return LANES; }

/* Runs a pass. Returns 0; 1: no memory; 2: the pass was given up, and keys and values of its rows are incomplete. */
int warmdesk_step(const Model *m, const Step *s) {
    int most_readers = largest(1, QUERIES / (m->heads / m->kv_heads)), threads = gather(s->threads), places = largest(1, threads);
    Cuts cuts = cut(s, most_readers, NULL, NULL);
    Space space = {0};
    lay_out(m, s, most_readers, cuts, places, &space);
    if (posix_memalign((void **)&space.memory, 64, space.taken)) return dismiss(threads), 1;
    space.taken = 0;
    Pass pass = lay_out(m, s, most_readers, cuts, places, &space);
    cut(s, most_readers, pass.units, pass.first_unit);
    memset(pass.parts.first_part, 0, (s->rows + 2) * sizeof(int32_t));
    find_parts(s, pass.units, cuts.units, pass.parts);
    for (int row = 0; row < s->rows; row++) s->key_positions[s->slots[row]] = s->positions[row];
    share((Work){&pass, next_stage, run_task}, threads);
    free(space.memory);
    return pass.is_given_up ? 2 : 0;
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

/* Returns the number of computed steps; 0 if there is no memory for the first. */
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
