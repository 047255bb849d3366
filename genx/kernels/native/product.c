#include "product.h"

/* Bytes by which weights are asked for before they are used. Measured on Zen 3: 4 to 9 KB are worth 1.1 to 1.9 times
 * the speed of the hardware's own prefetching. A prefetch past the end does nothing. */
#define AHEAD 8192
#define PREFETCH(address) __builtin_prefetch((const void *)((uintptr_t)(address) + AHEAD))

/* Sums are cut into parts of this many columns, so that a decoded panel stays in the first-level cache. */
#define PANEL_COLUMNS 512
#define PANEL_ROWS 4
#define TILE_INPUTS 3

/* ---- one row of input: weights are decoded in registers ---- */

static float dot_float32(const struct matrix *matrix, int64_t row, const float *x)
{
    const int64_t columns = matrix->columns;
    const float *w = (const float *)matrix->values + row * columns;
    floats sum[4] = {{0}};
    int64_t column = 0;
    for (; column + 4 * LANES <= columns; column += 4 * LANES) {
        PREFETCH(w + column);
        PREFETCH(w + column + 2 * LANES);
        for (int i = 0; i < 4; i++)
            sum[i] += load_float32(w + column + i * LANES) * load_float32(x + column + i * LANES);
    }
    float rest = 0;
    for (; column < columns; column++)
        rest += w[column] * x[column];
    return add_lanes((sum[0] + sum[1]) + (sum[2] + sum[3])) + rest;
}

INLINE float dot_half(int64_t format, const struct matrix *matrix, int64_t row, const float *x)
{
    const int64_t columns = matrix->columns;
    const uint16_t *w = (const uint16_t *)matrix->values + row * columns;
    floats sum[4] = {{0}};
    int64_t column = 0;
    for (; column + 4 * LANES <= columns; column += 4 * LANES) {
        PREFETCH(w + column);
        for (int i = 0; i < 4; i++) {
            const uint16_t *from = w + column + i * LANES;
            const floats weights = format == BFLOAT16 ? load_bfloat16(from) : load_float16(from);
            sum[i] += weights * load_float32(x + column + i * LANES);
        }
    }
    float rest = 0;
    for (; column < columns; column++)
        rest += (format == BFLOAT16 ? bfloat16_value(w[column]) : float16_value(w[column])) * x[column];
    return add_lanes((sum[0] + sum[1]) + (sum[2] + sum[3])) + rest;
}

static float dot_int8(const struct matrix *matrix, int64_t row, const float *x)
{
    const int64_t padded = round_up(matrix->columns, ROW_MULTIPLE);
    const int8_t *w = (const int8_t *)matrix->values + row * padded;
    const uint16_t *scales = matrix->scales + row * (padded / BLOCK);
    floats sum[2] = {{0}};
    for (int64_t column = 0; column < padded; column += 2 * BLOCK) {
        PREFETCH(w + column);
        for (int half = 0; half < 2; half++) {
            const int64_t start = column + half * BLOCK;
            floats part = load_int8(w + start) * load_float32(x + start);
            for (int i = LANES; i < BLOCK; i += LANES)
                part += load_int8(w + start + i) * load_float32(x + start + i);
            sum[half] += part * float16_value(scales[start / BLOCK]);
        }
    }
    return add_lanes(sum[0] + sum[1]);
}

/* x is `shifted`: see product.h. Nibbles are masked where they stand, which leaves 16^k times their value. */
static float dot_int4(const struct matrix *matrix, int64_t row, const float *x, const float *block_sums)
{
    const int64_t padded = round_up(matrix->columns, ROW_MULTIPLE);
    const char *w = (const char *)matrix->values + row * (padded / 2);
    const uint16_t *scales = matrix->scales + row * (padded / BLOCK) * 2;
    floats sum[2] = {{0}};
    for (int64_t column = 0; column < padded; column += 2 * BLOCK, w += 32, scales += 4) {
        PREFETCH(w);
        uints words = load_uint32(w);
        float pairs[4];
        four_float16_values(scales, pairs);
        for (int half = 0; half < 2; half++, words >>= 16) {
            const int64_t start = column + half * BLOCK;
            floats part = to_floats(words & 0xf) * load_float32(x + start);
            part += to_floats(words & 0xf0) * load_float32(x + start + LANES);
            part += to_floats(words & 0xf00) * load_float32(x + start + 2 * LANES);
            part += to_floats(words & 0xf000) * load_float32(x + start + 3 * LANES);
            sum[half] += part * pairs[2 * half];
            sum[half] += load_float32(block_sums + start / BLOCK * LANES) * pairs[2 * half + 1];
        }
    }
    return add_lanes(sum[0] + sum[1]);
}

INLINE float bias_of(const struct matrix *matrix, int64_t row) { return matrix->bias ? matrix->bias[row] : 0.0f; }

#define EACH_ROW(dot) \
    for (int64_t row = first; row < last; row++) \
        output[row] = dot + bias_of(matrix, row)

static void product_of_one(const struct matrix *matrix, const struct inputs *inputs, int64_t first, int64_t last, float *output)
{
    const float *x = inputs->values;
    switch (matrix->format) {
    case FLOAT32:
        EACH_ROW(dot_float32(matrix, row, x));
        break;
    case BFLOAT16:
        EACH_ROW(dot_half(BFLOAT16, matrix, row, x));
        break;
    case FLOAT16:
        EACH_ROW(dot_half(FLOAT16, matrix, row, x));
        break;
    case INT8:
        EACH_ROW(dot_int8(matrix, row, x));
        break;
    default:
        EACH_ROW(dot_int4(matrix, row, inputs->shifted, inputs->block_sums));
    }
}

/* ---- several rows of input: a panel of four weight rows is decoded once and multiplied with all of them ---- */

/* Four weight rows times `count` input rows, over `columns` columns, a multiple of eight. */
INLINE void tile(
    const float *const weights[PANEL_ROWS], const float *x, int64_t x_pitch, int64_t columns, const int count,
    float sums[PANEL_ROWS][TILE_INPUTS]
)
{
    floats sum[PANEL_ROWS][TILE_INPUTS] = {{{0}}};
    for (int64_t column = 0; column < columns; column += LANES) {
        floats input[TILE_INPUTS];
        for (int i = 0; i < count; i++)
            input[i] = load_float32(x + i * x_pitch + column);
        for (int r = 0; r < PANEL_ROWS; r++) {
            const floats weight = load_float32(weights[r] + column);
            for (int i = 0; i < count; i++)
                sum[r][i] += weight * input[i];
        }
    }
    for (int r = 0; r < PANEL_ROWS; r++)
        for (int i = 0; i < count; i++)
            sums[r][i] = add_lanes(sum[r][i]);
}

struct panel {
    const float *rows[PANEL_ROWS];
    int64_t columns; /* a multiple of eight */
    float decoded[PANEL_ROWS][PANEL_COLUMNS];
};

/* Columns [start, start + count) of `rows` weight rows from `row` on; missing rows repeat the last. */
INLINE void fill_panel(struct panel *panel, const struct matrix *matrix, int64_t row, int64_t rows, int64_t start, int64_t count)
{
    const int in_place = matrix->format == FLOAT32 && count % LANES == 0;
    panel->columns = is_quantized(matrix) ? round_up(count, ROW_MULTIPLE) : round_up(count, LANES);
    for (int64_t r = 0; r < PANEL_ROWS; r++) {
        if (r >= rows) {
            panel->rows[r] = panel->rows[rows - 1];
        } else if (in_place) {
            panel->rows[r] = (const float *)matrix->values + (row + r) * matrix->columns + start;
        } else {
            decode_row(matrix, row + r, start, is_quantized(matrix) ? panel->columns : count, panel->decoded[r]);
            panel->rows[r] = panel->decoded[r];
        }
    }
}

static void product_of_several(
    const struct matrix *matrix, const struct inputs *inputs, int64_t first, int64_t last, float *output, int64_t pitch
)
{
    struct panel panel;
    for (int64_t row = first; row < last; row += PANEL_ROWS) {
        const int64_t rows = minimum(PANEL_ROWS, last - row);
        for (int64_t start = 0; start < matrix->columns; start += PANEL_COLUMNS) {
            fill_panel(&panel, matrix, row, rows, start, minimum(PANEL_COLUMNS, matrix->columns - start));
            for (int64_t input = 0; input < inputs->rows; input += TILE_INPUTS) {
                const float *x = inputs->values + input * inputs->pitch + start;
                const int64_t count = minimum(TILE_INPUTS, inputs->rows - input);
                float sums[PANEL_ROWS][TILE_INPUTS];
                if (count == 3)
                    tile(panel.rows, x, inputs->pitch, panel.columns, 3, sums);
                else if (count == 2)
                    tile(panel.rows, x, inputs->pitch, panel.columns, 2, sums);
                else
                    tile(panel.rows, x, inputs->pitch, panel.columns, 1, sums);
                for (int64_t i = 0; i < count; i++)
                    for (int64_t r = 0; r < rows; r++) {
                        float *to = output + (input + i) * pitch + row + r;
                        *to = (start ? *to : bias_of(matrix, row + r)) + sums[r][i];
                    }
            }
        }
    }
}

void product(
    const struct matrix *matrix, const struct inputs *inputs, int64_t first, int64_t last, float *output, int64_t pitch
)
{
    if (inputs->rows == 1)
        product_of_one(matrix, inputs, first, last, output);
    else
        product_of_several(matrix, inputs, first, last, output, pitch);
}
