#include "attend.h"

#include <math.h>
#include <stdlib.h>

#include "attend_tile.h"
#include "team.h"

/* Tiles of queries that go over a part of the keys before they go over its values. */
#define TILES 8

/* Spans and groups to each member from which on no two need share one. */
#define ENOUGH_ITEMS 4

struct work {
    const struct attention *attention;
    const struct step *step;
    const struct row_cache *rows;
    float *projected; /* [N, (H + 2 G) D] */
    float *output;    /* [N, H D] */
    int64_t parts;    /* of the longest row */
};

INLINE int64_t visible_slots(const struct work *work, int64_t token)
{
    return minimum(work->step->positions[token] + 1, work->rows[work->step->rows[token]].capacity);
}

INLINE int64_t projected_size(const struct attention *attention)
{
    return (attention->heads + 2 * attention->groups) * attention->head_size;
}

static void rotate(float *head, const float *cosine, const float *sine, int64_t channels)
{
    const int64_t half = channels / 2;
    for (int64_t i = 0; i < half; i++) {
        const float first = head[i], second = head[half + i];
        head[i] = first * cosine[i] - second * sine[i];
        head[half + i] = second * cosine[half + i] + first * sine[half + i];
    }
}

/* Normalise and rotate `count` heads of a token in place. */
static void turn(float *heads, int64_t count, int64_t size, const struct norm *norm, const struct step *step, int64_t angle)
{
    for (int64_t head = 0; head < count; head++, heads += size) {
        if (norm->kind)
            normalize(norm, heads, size, heads);
        if (step->cosine)
            rotate(heads, step->cosine + angle, step->sine + angle, step->angles);
    }
}

/* Turn a token's queries and keys of one group in place, and write its key and value. */
static void enter_group(const struct work *work, int64_t token, int64_t group)
{
    const struct attention *attention = work->attention;
    const struct step *step = work->step;
    const struct row_cache *cache = &work->rows[step->rows[token]];
    const int64_t size = attention->head_size, shared = attention->heads / attention->groups;
    float *heads = work->projected + token * projected_size(attention);
    float *key = heads + (attention->heads + group) * size;
    const float *value = key + attention->groups * size;
    const int64_t angle = token * step->angles;
    turn(heads + group * shared * size, shared, size, &attention->query_norm, step, angle);
    turn(key, 1, size, &attention->key_norm, step, angle);
    if (step->visible && !step->visible[token])
        return;
    const int64_t to = (group * cache->capacity + step->positions[token] % cache->capacity) * size;
    memcpy(cache->keys + to, key, (size_t)size * sizeof(float));
    memcpy(cache->values + to, value, (size_t)size * sizeof(float));
}

/* Queries of a span from `query` on that make a tile: heads of one token, or the only head of several. */
INLINE struct queries take_queries(
    const struct work *work, int64_t span, int64_t group, int64_t part, int64_t query, int64_t end, float *mixtures
)
{
    const struct attention *attention = work->attention;
    const int64_t size = attention->head_size, shared = attention->heads / attention->groups;
    const int64_t token = work->step->starts[span] + query / shared, head = query % shared;
    struct queries queries = {
        .values = work->projected + token * projected_size(attention) + (group * shared + head) * size,
        .pitch = shared == 1 ? projected_size(attention) : size,
        .count = minimum(shared == 1 ? end - query : shared - head, TILE_INPUTS),
    };
    for (int64_t i = 0; i < queries.count; i++) {
        queries.slots[i] = minimum(visible_slots(work, shared == 1 ? token + i : token) - part * PART, PART);
        queries.mixtures[i] = mixtures + ((query + i) * work->parts + part) * (size + 2);
    }
    return queries;
}

/* All queries of one span that share a key head, over one part: mixtures [tokens, H / G, parts, D + 2]. First all of some
 * tiles look at the keys, then at the values, so that the first-level cache need not hold both. */
static void attend_part(const struct work *work, int64_t span, int64_t group, int64_t part, float *mixtures)
{
    const struct attention *attention = work->attention;
    const int64_t first = work->step->starts[span];
    const int64_t end = (work->step->starts[span + 1] - first) * (attention->heads / attention->groups);
    const struct row_cache *cache = &work->rows[work->step->rows[first]];
    const int64_t from = (group * cache->capacity + part * PART) * attention->head_size;
    const float *keys = cache->keys + from, *values = cache->values + from;
    float scores[TILES][TILE_INPUTS][PART];
    struct queries tiles[TILES];
    for (int64_t query = 0; query < end;) {
        int64_t count = 0;
        for (; count < TILES && query < end; query += tiles[count++].count) {
            tiles[count] = take_queries(work, span, group, part, query, end, mixtures);
            tiles[count].scores = scores[count];
            const float *asked = query ? NULL : values;
            if (tiles[count].count == 3)
                weigh_queries(attention, &tiles[count], 3, keys, asked);
            else if (tiles[count].count == 2)
                weigh_queries(attention, &tiles[count], 2, keys, asked);
            else
                weigh_queries(attention, &tiles[count], 1, keys, asked);
        }
        for (int64_t i = 0; i < count; i++)
            if (tiles[i].count == 3)
                mix_queries(attention, &tiles[i], 3, values);
            else if (tiles[i].count == 2)
                mix_queries(attention, &tiles[i], 2, values);
            else
                mix_queries(attention, &tiles[i], 1, values);
    }
}

INLINE int64_t parts_of(int64_t slots) { return (slots + PART - 1) / PART; }

/* The softmax over all slots from those over the parts of one query. */
static void join_parts(const struct work *work, int64_t token, int64_t head, const float *mixtures)
{
    const int64_t size = work->attention->head_size, parts = parts_of(visible_slots(work, token));
    float *output = work->output + (token * work->attention->heads + head) * size;
    const float *sink = work->attention->sinks ? work->attention->sinks + head : NULL;
    float largest = mixtures[size], total = 0;
    for (int64_t part = 1; part < parts; part++) {
        const float other = mixtures[part * (size + 2) + size];
        largest = other > largest || other != other ? other : largest;
    }
    if (sink) {
        largest = *sink > largest ? *sink : largest;
        total = expf(*sink - largest);
    }
    memset(output, 0, (size_t)size * sizeof *output);
    for (int64_t part = 0; part < parts; part++) {
        const float *mixture = mixtures + part * (size + 2);
        const float weight = expf(mixture[size] - largest);
        total += mixture[size + 1] * weight;
        for (int64_t i = 0; i < size; i++)
            output[i] += mixture[i] * weight;
    }
    for (int64_t i = 0; i < size; i++)
        output[i] /= total;
}

static void join_span(const struct work *work, int64_t span, int64_t group, const float *mixtures)
{
    const int64_t shared = work->attention->heads / work->attention->groups;
    for (int64_t token = work->step->starts[span]; token < work->step->starts[span + 1]; token++)
        for (int64_t head = group * shared; head < (group + 1) * shared; head++) {
            join_parts(work, token, head, mixtures);
            mixtures += work->parts * (work->attention->head_size + 2);
        }
}

static int64_t longest_row(const struct step *step, const struct row_cache *rows)
{
    int64_t slots = 0;
    for (int64_t token = 0; token < step->tokens; token++) {
        const int64_t visible = minimum(step->positions[token] + 1, rows[step->rows[token]].capacity);
        slots = visible > slots ? visible : slots;
    }
    return slots;
}

/* Whether each span is attended from by one member, and not part by part by all of them. */
static int is_long(const struct attention *attention, const struct step *step)
{
    return step->spans * attention->groups >= ENOUGH_ITEMS * team_size();
}

/* Floats that are made of a span's queries of one group. */
static int64_t span_size(const struct attention *attention, int64_t tokens, int64_t parts)
{
    return tokens * (attention->heads / attention->groups) * parts * (attention->head_size + 2);
}

int64_t attend_memory(const struct attention *attention, const struct step *step, const struct row_cache *rows)
{
    const int64_t parts = parts_of(longest_row(step, rows));
    if (is_long(attention, step))
        return team_size() * span_size(attention, SPAN, parts);
    return attention->groups * span_size(attention, step->tokens, parts);
}

/* Each span at once, from its first part to the joined softmax. */
static void attend_spans(const struct work *work, float *memory, const struct member *me)
{
    const int64_t groups = work->attention->groups;
    memory += me->index * span_size(work->attention, SPAN, work->parts);
    /* In turn, for later spans see more. */
    for (int64_t item = me->index; item < work->step->spans * groups; item += me->count) {
        const int64_t span = item / groups, group = item % groups;
        const int64_t parts = parts_of(visible_slots(work, work->step->starts[span + 1] - 1));
        for (int64_t part = 0; part < parts; part++)
            attend_part(work, span, group, part, memory);
        join_span(work, span, group, memory);
    }
}

/* The parts of all spans, and then their softmax. */
static void attend_parts(const struct work *work, float *memory, const struct member *me)
{
    const int64_t groups = work->attention->groups, size = span_size(work->attention, 1, work->parts);
    int64_t first, last;
    team_share(work->step->spans * groups * work->parts, me, &first, &last);
    for (int64_t item = first; item < last; item++) {
        const int64_t span = item / work->parts / groups, group = item / work->parts % groups;
        float *mixtures = memory + (work->step->starts[span] * groups
            + group * (work->step->starts[span + 1] - work->step->starts[span])) * size;
        attend_part(work, span, group, item % work->parts, mixtures);
    }
    team_wait(me);
    team_share(work->step->spans * groups, me, &first, &last);
    for (int64_t item = first; item < last; item++) {
        const int64_t span = item / groups, group = item % groups;
        const float *mixtures = memory + (work->step->starts[span] * groups
            + group * (work->step->starts[span + 1] - work->step->starts[span])) * size;
        join_span(work, span, group, mixtures);
    }
}

void attend(
    const struct attention *attention, const struct step *step, const struct row_cache *rows, float *projected,
    float *output, float *memory, const struct member *me
)
{
    const struct work work = {attention, step, rows, projected, output, parts_of(longest_row(step, rows))};
    int64_t first, last;
    team_share(step->tokens * attention->groups, me, &first, &last);
    for (int64_t item = first; item < last; item++)
        enter_group(&work, item / attention->groups, item % attention->groups);
    team_wait(me);
    if (is_long(attention, step))
        attend_spans(&work, memory, me);
    else
        attend_parts(&work, memory, me);
}

int64_t attend_work(const struct attention *attention, const struct step *step, const struct row_cache *rows)
{
    return step->tokens * attention->heads * longest_row(step, rows) * attention->head_size * 2;
}

struct attending {
    const struct attention *attention;
    const struct step *step;
    const struct row_cache *rows;
    float *projected, *output, *memory;
};

static void attend_share(const void *job, const struct member *me)
{
    const struct attending *work = job;
    attend(work->attention, work->step, work->rows, work->projected, work->output, work->memory, me);
}

/* `attend` by a team. Returns 0, or 1 if there is no memory. */
int32_t genx_attend(
    const struct attention *attention, const struct step *step, const struct row_cache *rows, float *projected,
    float *output
)
{
    float *memory = malloc((size_t)attend_memory(attention, step, rows) * sizeof *memory);
    if (!memory)
        return 1;
    const struct attending work = {attention, step, rows, projected, output, memory};
    team_run(attend_share, &work, attend_work(attention, step, rows));
    free(memory);
    return 0;
}
