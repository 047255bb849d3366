/* A few queries over one part of the keys and values of their row. */
#ifndef GENX_ATTEND_TILE_H
#define GENX_ATTEND_TILE_H

#include "attend.h"
#include "tile.h"

/* Slots whose scores are taken at once: their keys and values stay in the first-level cache for all queries of a span.
 * The parts of a query are mixed in the order of their slots, whoever made them. */
#define PART 128

/* scores[i][s] = query i . key s for `count` queries and the four keys from `slot` on; keys after `last` repeat it. */
INLINE void score_four(
    const float *queries, int64_t pitch, const int count, const float *keys, int64_t slot, int64_t last, int64_t size,
    float scores[TILE_INPUTS][PART]
)
{
    const int64_t whole = size / LANES * LANES;
    const float *rows[TILE_ROWS];
    floats lanes[TILE_INPUTS][TILE_ROWS] = {{{0}}};
    for (int r = 0; r < TILE_ROWS; r++)
        rows[r] = slot + TILE_ROWS - 1 == last ? keys + (slot + r) * size : keys + minimum(slot + r, last) * size;
    tile_lanes(rows, queries, pitch, whole, count, lanes);
    for (int i = 0; i < count; i++)
        add_lanes_of_four(lanes[i], scores[i] + slot);
    for (int64_t channel = whole; channel < size; channel++)
        for (int i = 0; i < count; i++)
            for (int r = 0; r < TILE_ROWS; r++)
                scores[i][slot + r] += queries[i * pitch + channel] * rows[r][channel];
}

/* Where `values` are not null they are asked for on the way: those of a row that nothing has read lately come from memory
 * while the keys are multiplied. */
INLINE void score_tile(
    const float *queries, int64_t pitch, const int count, const float *keys, const float *values, int64_t slots,
    int64_t size, float scores[TILE_INPUTS][PART]
)
{
    int64_t slot = 0;
    for (; slot + TILE_ROWS <= slots; slot += TILE_ROWS) {
        if (values)
            for (int64_t i = 0; i < TILE_ROWS * size; i += LINE)
                __builtin_prefetch(values + slot * size + i);
        score_four(queries, pitch, count, keys, slot, slot + TILE_ROWS - 1, size, scores);
    }
    if (slot < slots)
        score_four(queries, pitch, count, keys, slot, slots - 1, size, scores);
}

INLINE floats hyperbolic_tangent(floats x) { return 1.0f - 2.0f / (exponential(x + x) + 1.0f); }

/* Scale and cap `count` scores, and fill them up to a multiple of eight with what weighs nothing; returns the largest (NaN if one is). */
static float finish_scores(const struct attention *attention, float *scores, int64_t count)
{
    floats largest = splat(-__builtin_inff());
    for (int64_t slot = 0; slot < count; slot += LANES) {
        floats eight = load_float32(scores + slot) * attention->scale;
        if (attention->softcap > 0)
            eight = hyperbolic_tangent(eight / attention->softcap) * attention->softcap;
        store_float32(scores + slot, eight);
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

/* mixed[i] += weights[i][s] * value s over slots [from, to), for `count` queries and `width` eights of their channels. */
INLINE void mix_channels(
    float weights[TILE_INPUTS][PART], const float *values, int64_t from, int64_t to, int64_t size, const int count,
    const int width, float *const mixed[TILE_INPUTS]
)
{
    floats sum[TILE_INPUTS][8];
    for (int i = 0; i < count; i++)
        for (int k = 0; k < width; k++)
            sum[i][k] = load_float32(mixed[i] + k * LANES);
    for (int64_t slot = from; slot < to; slot++) {
        for (int k = 0; k < width; k++) {
            const floats value = load_float32(values + slot * size + k * LANES);
            for (int i = 0; i < count; i++)
                sum[i][k] += value * weights[i][slot];
        }
    }
    for (int i = 0; i < count; i++)
        for (int k = 0; k < width; k++)
            store_float32(mixed[i] + k * LANES, sum[i][k]);
}

INLINE void mix_tile(
    float weights[TILE_INPUTS][PART], const float *values, int64_t from, int64_t to, int64_t size, const int count,
    float *const mixed[TILE_INPUTS]
)
{
    const int width = count == 1 ? 8 : 4;
    int64_t channel = 0;
    for (; channel + width * LANES <= size; channel += width * LANES) {
        float *const at[TILE_INPUTS] = {mixed[0] + channel, mixed[1] + channel, mixed[2] + channel};
        mix_channels(weights, values + channel, from, to, size, count, width, at);
    }
    for (; channel + LANES <= size; channel += LANES) {
        float *const at[TILE_INPUTS] = {mixed[0] + channel, mixed[1] + channel, mixed[2] + channel};
        mix_channels(weights, values + channel, from, to, size, count, 1, at);
    }
    for (; channel < size; channel++)
        for (int i = 0; i < count; i++)
            for (int64_t slot = from; slot < to; slot++)
                mixed[i][channel] += weights[i][slot] * values[slot * size + channel];
}

/* Queries of one key head, a constant distance apart, each of which sees the first slots[i] slots of a part. */
struct queries {
    const float *values;
    int64_t pitch, count;
    int64_t slots[TILE_INPUTS];
    /* What is made of each: its mixed values, its largest score, the sum of its powers, [D + 2]; nothing where it sees no
     * slot. */
    float *mixtures[TILE_INPUTS];
    float (*scores)[PART]; /* which become weights */
};

INLINE void weigh_queries(
    const struct attention *attention, const struct queries *queries, const int count, const float *keys,
    const float *values
)
{
    const int64_t size = attention->head_size;
    int64_t most = 0;
    for (int i = 0; i < count; i++)
        most = queries->slots[i] > most ? queries->slots[i] : most;
    score_tile(queries->values, queries->pitch, count, keys, values, most, size, queries->scores);
    for (int i = 0; i < count; i++) {
        if (queries->slots[i] <= 0)
            continue;
        const float largest = finish_scores(attention, queries->scores[i], queries->slots[i]);
        queries->mixtures[i][size] = largest;
        queries->mixtures[i][size + 1] = weigh(queries->scores[i], queries->slots[i], largest);
    }
}

INLINE void mix_queries(
    const struct attention *attention, const struct queries *queries, const int count, const float *values
)
{
    const int64_t size = attention->head_size;
    int64_t fewest = PART;
    for (int i = 0; i < count; i++) {
        fewest = minimum(fewest, queries->slots[i] > 0 ? queries->slots[i] : 0);
        if (queries->slots[i] > 0)
            memset(queries->mixtures[i], 0, (size_t)size * sizeof(float));
    }
    if (fewest)
        mix_tile(queries->scores, values, 0, fewest, size, count, queries->mixtures);
    for (int i = 0; i < count; i++) {
        float *const alone[TILE_INPUTS] = {queries->mixtures[i], queries->mixtures[i], queries->mixtures[i]};
        if (queries->slots[i] > fewest)
            mix_tile(queries->scores + i, values, fewest, queries->slots[i], size, 1, alone);
    }
}

#endif
