/* Weights rounded to blocks of 8 or 4 bits; genx/kernels/quantize.py is the reference. */
#include <math.h>

#include "matrix.h"
#include "team.h"

#define VECTORS (BLOCK / LANES)

enum fault { NOT_FINITE = 1, TOO_LARGE = 2 };

struct quantization {
    const struct matrix *from; /* of a float format */
    int64_t format;            /* INT8 or INT4 */
    void *values;
    uint16_t *scales;
    int64_t *faults; /* bits of enum fault, set by every member */
};

struct int4_block {
    floats values[VECTORS];
    float scale, offset, error;
};

/* To float16, ties to even; above its range infinity. */
static uint16_t to_float16(float value)
{
#if defined(__AVX2__)
    return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
#else
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits >= 0x477ff000) /* 65520 and what lies above it round to infinity; NaN does not come here */
        return sign | 0x7c00;
    if (bits < 0x38800000) { /* subnormal: a sum with 0.5 leaves the rounded steps of 2^-24 in the lowest bits */
        float magnitude;
        memcpy(&magnitude, &bits, sizeof magnitude);
        magnitude += 0.5f;
        memcpy(&bits, &magnitude, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    bits += 0xfff + (bits >> 13 & 1) - 0x38000000;
    return (uint16_t)(sign | bits >> 13);
#endif
}

INLINE floats clamp(floats x, float low, float high)
{
    x = choose(x < splat(low), splat(low), x);
    return choose(x > splat(high), splat(high), x);
}

/* To the nearest integer, ties to even, for |x| < 2^22. */
INLINE floats nearest(floats x)
{
    const float magic = 0x1.8p23f;
    return (x + magic) - magic;
}

INLINE floats magnitude(floats x) { return (floats)((ints)x & 0x7fffffff); }

static int64_t quantize_int8_block(const float *weights, int8_t *values, uint16_t *scale)
{
    floats largest = {0};
    for (int i = 0; i < VECTORS; i++) {
        const floats size = magnitude(load_float32(weights + i * LANES));
        largest = choose((size > largest) | (size != size), size, largest);
    }
    const float most = largest_lane(largest);
    if (!isfinite(most))
        return NOT_FINITE;
    *scale = to_float16(most / 127);
    const float step = float16_value(*scale);
    if (!isfinite(step))
        return TOO_LARGE;
    for (int i = 0; i < BLOCK; i += LANES) {
        const floats rounded = step == 0 ? (floats){0} : nearest(clamp(load_float32(weights + i) / step, -127, 127));
        for (int lane = 0; lane < LANES; lane++)
            values[i + lane] = (int8_t)rounded[lane];
    }
    return 0;
}

INLINE void round_block(const floats weights[VECTORS], float scale, float offset, floats values[VECTORS])
{
    const float steps = 1 / scale;
    for (int i = 0; i < VECTORS; i++)
        values[i] = nearest(clamp((weights[i] - offset) * steps, 0, 15));
}

/* Round with a trial scale and offset, fit both to the outcome by least squares, round again, and keep what is best. */
INLINE void try_block(const floats weights[VECTORS], float scale, float offset, struct int4_block *best)
{
    floats values[VECTORS];
    round_block(weights, scale, offset, values);
    floats sum_values = {0}, sum_squares = {0}, sum_products = {0}, sum_weights = {0}, sum_errors = {0};
    for (int i = 0; i < VECTORS; i++) {
        sum_values += values[i];
        sum_squares += values[i] * values[i];
        sum_products += values[i] * weights[i];
        sum_weights += weights[i];
    }
    const float total_values = add_lanes(sum_values), total_weights = add_lanes(sum_weights);
    const float spread = BLOCK * add_lanes(sum_squares) - total_values * total_values;
    if (spread > 0) {
        scale = (BLOCK * add_lanes(sum_products) - total_values * total_weights) / spread;
        offset = (total_weights - scale * total_values) / BLOCK;
    }
    scale = float16_value(to_float16(scale));
    offset = float16_value(to_float16(offset));
    if (!(scale > 0) || !isfinite(scale) || !isfinite(offset))
        return;
    round_block(weights, scale, offset, values);
    for (int i = 0; i < VECTORS; i++) {
        const floats error = weights[i] - (values[i] * scale + offset);
        sum_errors += error * error;
    }
    const float error = add_lanes(sum_errors);
    if (error < best->error) {
        memcpy(best->values, values, sizeof values);
        best->scale = scale;
        best->offset = offset;
        best->error = error;
    }
}

/* Steps that a block's range is cut into on trial. Fewer than 15 find weights that lie on a coarser grid. */
#define MOST_STEPS 15
#define FEWEST_STEPS 8

static int64_t quantize_int4_block(const float *from, float values[BLOCK], uint16_t scale_and_offset[2])
{
    floats weights[VECTORS];
    float low = from[0], high = from[0];
    for (int i = 0; i < BLOCK; i++) {
        if (!isfinite(from[i]))
            return NOT_FINITE;
        low = from[i] < low ? from[i] : low;
        high = from[i] > high ? from[i] : high;
    }
    memcpy(weights, from, sizeof weights);
    /* A block of one value: its offset says it all, as well as float16 can. */
    struct int4_block best = {{{0}}, 0, float16_value(to_float16((low + high) / 2)), __builtin_inff()};
    if (!isfinite(best.offset) || !isfinite(float16_value(to_float16(high - low))))
        return TOO_LARGE;
    for (int steps = MOST_STEPS; high > low && steps >= FEWEST_STEPS; steps--)
        try_block(weights, (high - low) / (float)steps, low, &best);
    memcpy(values, best.values, sizeof best.values);
    scale_and_offset[0] = to_float16(best.scale);
    scale_and_offset[1] = to_float16(best.offset);
    return 0;
}

static int64_t quantize_int4_pair(const float *weights, uint8_t *words, uint16_t *scales)
{
    float values[2 * BLOCK];
    int64_t fault = quantize_int4_block(weights, values, scales);
    fault |= quantize_int4_block(weights + BLOCK, values + BLOCK, scales + 2);
    for (int word = 0; !fault && word < LANES; word++)
        for (int byte = 0; byte < 4; byte++) {
            const float *pair = values + byte * 2 * LANES + word;
            words[word * 4 + byte] = (uint8_t)((int)pair[0] | (int)pair[LANES] << 4);
        }
    return fault;
}

static void quantize_share(const void *job, const struct member *me)
{
    const struct quantization *work = job;
    const int64_t columns = work->from->columns, padded = round_up(columns, ROW_MULTIPLE);
    float weights[ROW_MULTIPLE];
    int64_t first, last, faults = 0;
    team_share(work->from->rows, me, &first, &last);
    for (int64_t row = first; row < last; row++)
        for (int64_t column = 0; column < padded; column += ROW_MULTIPLE) {
            const int64_t start = row * padded + column;
            memset(weights, 0, sizeof weights);
            decode_row(work->from, row, column, minimum(columns - column, ROW_MULTIPLE), weights);
            if (work->format == INT8) {
                int8_t *values = (int8_t *)work->values + start;
                uint16_t *scales = work->scales + start / BLOCK;
                faults |= quantize_int8_block(weights, values, scales);
                faults |= quantize_int8_block(weights + BLOCK, values + BLOCK, scales + 1);
            } else {
                uint8_t *words = (uint8_t *)work->values + start / 2;
                faults |= quantize_int4_pair(weights, words, work->scales + start / BLOCK * 2);
            }
        }
    __atomic_fetch_or(work->faults, faults, __ATOMIC_RELAXED);
}

/* Round a matrix of a float format to `format`, INT8 or INT4, with the layout of matrix.h. Returns 0, or which faults
 * of enum fault it has; what is written is then of no use. */
int64_t genx_quantize(const struct matrix *from, int64_t format, void *values, uint16_t *scales)
{
    int64_t faults = 0;
    const struct quantization work = {from, format, values, scales, &faults};
    team_run(quantize_share, &work, from->rows * from->columns);
    return faults;
}
