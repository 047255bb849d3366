#include "attend.h"

#include <math.h>
#include <stdlib.h>

#include "team.h"
#include "vector.h"

/* Slots whose scores one thread takes at once. Parts are mixed in the order of their slots, whoever made them. */
#define PART 128
#define PREFETCH(address) __builtin_prefetch((const void *)((uintptr_t)(address) + 4096))

struct work {
    const struct attention *attention;
    const struct step *step;
    const struct row_cache *rows;
    float *projected; /* [B, T, (H + 2 G) D] */
    float *output;    /* [B, T, H D] */
    int64_t parts;    /* of the longest row */
    float *mixtures;  /* [B, T, H, parts, D + 2]: the part's mixed values, its largest score, its sum of powers */
};

INLINE int64_t visible_slots(const struct step *step, const struct row_cache *rows, int64_t row, int64_t token)
{
    return minimum(step->positions[row * step->length + token] + 1, rows[row].capacity);
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
static void enter_group(const struct work *work, int64_t row, int64_t token, int64_t group)
{
    const struct attention *attention = work->attention;
    const struct step *step = work->step;
    const struct row_cache *cache = &work->rows[row];
    const int64_t size = attention->head_size, index = row * step->length + token;
    const int64_t shared = attention->heads / attention->groups;
    float *heads = work->projected + index * projected_size(attention);
    float *key = heads + (attention->heads + group) * size;
    const float *value = key + attention->groups * size;
    const int64_t angle = row * step->angle_pitch + token * step->angles;
    turn(heads + group * shared * size, shared, size, &attention->query_norm, step, angle);
    turn(key, 1, size, &attention->key_norm, step, angle);
    if (step->visible && !step->visible[index])
        return;
    const int64_t to = (group * cache->capacity + step->positions[index] % cache->capacity) * size;
    memcpy(cache->keys + to, key, (size_t)size * sizeof(float));
    memcpy(cache->values + to, value, (size_t)size * sizeof(float));
}

INLINE float dot(const float *a, const float *b, int64_t size)
{
    floats sum = {0};
    float rest = 0;
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES)
        sum += load_float32(a + i) * load_float32(b + i);
    for (; i < size; i++)
        rest += a[i] * b[i];
    return add_lanes(sum) + rest;
}

INLINE floats hyperbolic_tangent(floats x) { return 1.0f - 2.0f / (exponential(x + x) + 1.0f); }

/* scores[s] = query . key s, scaled and capped, for `count` keys; returns the largest (NaN if one is). */
static float score(const struct attention *attention, const float *query, const float *keys, int64_t count, float *scores)
{
    const int64_t size = attention->head_size;
    floats largest = splat(-__builtin_inff());
    for (int64_t slot = 0; slot < count; slot++) {
        PREFETCH(keys + slot * size);
        scores[slot] = dot(query, keys + slot * size, size) * attention->scale;
    }
    if (attention->softcap > 0)
        for (int64_t slot = 0; slot < count; slot += LANES) {
            const floats bent = hyperbolic_tangent(load_float32(scores + slot) / attention->softcap);
            store_float32(scores + slot, bent * attention->softcap);
        }
    for (int64_t slot = count; slot < round_up(count, LANES); slot++)
        scores[slot] = -__builtin_inff();
    for (int64_t slot = 0; slot < count; slot += LANES) {
        const floats eight = load_float32(scores + slot);
        largest = choose((eight > largest) | (eight != eight), eight, largest);
    }
    return largest_lane(largest);
}

/* scores become e^(score - largest); returns their sum. */
static float weigh(float *scores, int64_t count, float largest)
{
    floats sum = {0};
    for (int64_t slot = 0; slot < count; slot += LANES) {
        const floats weights = exponential(load_float32(scores + slot) - largest);
        store_float32(scores + slot, weights);
        sum += weights;
    }
    return add_lanes(sum);
}

/* mixed = the sum of weights[s] * value s, `width` channels of it in registers. */
INLINE void mix_channels(const float *weights, const float *values, int64_t count, int64_t size, const int width, float *mixed)
{
    floats sum[8] = {{0}};
    for (int64_t slot = 0; slot < count; slot++) {
        PREFETCH(values + slot * size);
        for (int i = 0; i < width; i++)
            sum[i] += load_float32(values + slot * size + i * LANES) * weights[slot];
    }
    for (int i = 0; i < width; i++)
        store_float32(mixed + i * LANES, sum[i]);
}

static void mix(const float *weights, const float *values, int64_t count, int64_t size, float *mixed)
{
    int64_t channel = 0;
    for (; channel + 8 * LANES <= size; channel += 8 * LANES)
        mix_channels(weights, values + channel, count, size, 8, mixed + channel);
    for (; channel + LANES <= size; channel += LANES)
        mix_channels(weights, values + channel, count, size, 1, mixed + channel);
    for (; channel < size; channel++) {
        mixed[channel] = 0;
        for (int64_t slot = 0; slot < count; slot++)
            mixed[channel] += weights[slot] * values[slot * size + channel];
    }
}

/* All queries of one row that share a key head, over one part of its slots. */
static void attend_part(const struct work *work, int64_t row, int64_t group, int64_t part)
{
    const struct attention *attention = work->attention;
    const int64_t size = attention->head_size, shared = attention->heads / attention->groups;
    const struct row_cache *cache = &work->rows[row];
    const int64_t start = part * PART;
    const int64_t from = (group * cache->capacity + start) * size;
    float scores[PART] = {0};
    for (int64_t token = 0; token < work->step->length; token++) {
        const int64_t index = row * work->step->length + token;
        const int64_t count = minimum(visible_slots(work->step, work->rows, row, token) - start, PART);
        for (int64_t head = group * shared; count > 0 && head < (group + 1) * shared; head++) {
            float *mixture = work->mixtures + ((index * attention->heads + head) * work->parts + part) * (size + 2);
            const float *query = work->projected + index * projected_size(attention) + head * size;
            const float largest = score(attention, query, cache->keys + from, count, scores);
            mixture[size] = largest;
            mixture[size + 1] = weigh(scores, count, largest);
            mix(scores, cache->values + from, count, size, mixture);
        }
    }
}

/* The softmax over all slots from those over its parts. */
static void join_parts(const struct work *work, int64_t index, int64_t head, int64_t parts)
{
    const int64_t size = work->attention->head_size;
    const float *mixtures = work->mixtures + (index * work->attention->heads + head) * work->parts * (size + 2);
    float *output = work->output + (index * work->attention->heads + head) * size;
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

static int64_t longest_row(const struct step *step, const struct row_cache *rows)
{
    int64_t slots = 0;
    for (int64_t index = 0; index < step->batch * step->length; index++) {
        const int64_t visible = visible_slots(step, rows, index / step->length, index % step->length);
        slots = visible > slots ? visible : slots;
    }
    return slots;
}

INLINE int64_t parts_of(int64_t slots) { return (slots + PART - 1) / PART; }

int64_t attend_memory(const struct attention *attention, const struct step *step, const struct row_cache *rows)
{
    const int64_t parts = parts_of(longest_row(step, rows));
    return step->batch * step->length * attention->heads * parts * (attention->head_size + 2);
}

void attend(
    const struct attention *attention, const struct step *step, const struct row_cache *rows, float *projected,
    float *output, float *memory, const struct member *me
)
{
    const int64_t groups = attention->groups, heads = attention->heads, tokens = step->batch * step->length;
    const struct work work = {attention, step, rows, projected, output, parts_of(longest_row(step, rows)), memory};
    int64_t first, last;
    team_share(tokens * groups, me, &first, &last);
    for (int64_t item = first; item < last; item++)
        enter_group(&work, item / groups / step->length, item / groups % step->length, item % groups);
    team_wait(me);
    team_share(step->batch * groups * work.parts, me, &first, &last);
    for (int64_t item = first; item < last; item++)
        attend_part(&work, item / work.parts / groups, item / work.parts % groups, item % work.parts);
    team_wait(me);
    team_share(tokens * heads, me, &first, &last);
    for (int64_t item = first; item < last; item++) {
        const int64_t index = item / heads;
        const int64_t slots = visible_slots(step, rows, index / step->length, index % step->length);
        join_parts(&work, index, item % heads, parts_of(slots));
    }
}

int64_t attend_work(const struct attention *attention, const struct step *step, const struct row_cache *rows)
{
    return step->batch * step->length * attention->heads * longest_row(step, rows) * attention->head_size * 2;
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
