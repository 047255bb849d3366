#include "product.h"

#include "tile.h"

/* Bytes by which weights are asked for before they are used. A prefetch past the end does nothing. */
#define AHEAD 2048
#define PREFETCH(address) __builtin_prefetch((const void *)((uintptr_t)(address) + AHEAD))

/* Weight rows that one row of input is multiplied with at once, a quarter of the share apart: memory gives more to
 * several streams than to one, and the input is loaded once for all. */
#define STREAMS 4

/* Columns of four weight rows that are decoded at once: they stay in the first-level cache while all inputs pass by.
 * Fewer would have a tile spend more of its time on beginning and ending; inputs, which come from the second-level cache
 * once for each panel, cost little. */
#define PANEL_COLUMNS 768

/* ---- one row of input: weights are decoded in registers ----
 *
 * sums[i] = weight row `row + i * apart` . x, for `count` rows. A row's sum is the same whatever the count. */

INLINE void dots_float32(
    const struct matrix *matrix, int64_t row, int64_t apart, const int count, const float *x, float sums[STREAMS]
)
{
    const int64_t columns = matrix->columns, pitch = apart * columns;
    const float *w = (const float *)matrix->values + row * columns;
    floats sum[STREAMS][2] = {{{0}}};
    int64_t column = 0;
    for (; column + 2 * LANES <= columns; column += 2 * LANES) {
        const floats first = load_float32(x + column), second = load_float32(x + column + LANES);
        for (int i = 0; i < count; i++) {
            const float *from = w + i * pitch + column;
            PREFETCH(from);
            sum[i][0] += load_float32(from) * first;
            sum[i][1] += load_float32(from + LANES) * second;
        }
    }
    for (int i = 0; i < count; i++) {
        float rest = 0;
        for (int64_t last = column; last < columns; last++)
            rest += w[i * pitch + last] * x[last];
        sums[i] = add_lanes(sum[i][0] + sum[i][1]) + rest;
    }
}

INLINE floats load_half(int64_t format, const uint16_t *from)
{
    return format == BFLOAT16 ? load_bfloat16(from) : load_float16(from);
}

INLINE void dots_half(
    int64_t format, const struct matrix *matrix, int64_t row, int64_t apart, const int count, const float *x,
    float sums[STREAMS]
)
{
    const int64_t columns = matrix->columns, pitch = apart * columns;
    const uint16_t *w = (const uint16_t *)matrix->values + row * columns;
    floats sum[STREAMS][2] = {{{0}}};
    int64_t column = 0;
    for (; column + 4 * LANES <= columns; column += 4 * LANES)
        for (int i = 0; i < count; i++) {
            const uint16_t *from = w + i * pitch + column;
            PREFETCH(from);
            for (int k = 0; k < 4; k++)
                sum[i][k % 2] += load_half(format, from + k * LANES) * load_float32(x + column + k * LANES);
        }
    for (int i = 0; i < count; i++) {
        float rest = 0;
        for (int64_t last = column; last < columns; last++) {
            const uint16_t half = w[i * pitch + last];
            rest += (format == BFLOAT16 ? bfloat16_value(half) : float16_value(half)) * x[last];
        }
        sums[i] = add_lanes(sum[i][0] + sum[i][1]) + rest;
    }
}

/* Scales are made floats for this many blocks at once. */
#define SCALED_BLOCKS 64

/* `count` scales, a multiple of two, of each row from block `first` on as floats. */
INLINE void widen_scales(
    const uint16_t *scales, int64_t pitch, const int rows, int64_t count, float wide[STREAMS][2 * SCALED_BLOCKS]
)
{
    for (int i = 0; i < rows; i++, scales += pitch) {
        int64_t k = 0;
        for (; k + LANES <= count; k += LANES)
            store_float32(wide[i] + k, load_float16(scales + k));
        for (; k + 4 <= count; k += 4)
            four_float16_values(scales + k, wide[i] + k);
        for (; k < count; k++)
            wide[i][k] = float16_value(scales[k]);
    }
}

INLINE void dots_int8(
    const struct matrix *matrix, int64_t row, int64_t apart, const int count, const float *x, float sums[STREAMS]
)
{
    const int64_t padded = round_up(matrix->columns, ROW_MULTIPLE), pitch = apart * padded;
    const int8_t *w = (const int8_t *)matrix->values + row * padded;
    const uint16_t *scales = matrix->scales + row * (padded / BLOCK);
    float wide[STREAMS][2 * SCALED_BLOCKS];
    floats sum[STREAMS] = {{0}};
    for (int64_t first = 0; first < padded; first += SCALED_BLOCKS * BLOCK) {
        const int64_t blocks = minimum(padded - first, SCALED_BLOCKS * BLOCK) / BLOCK;
        widen_scales(scales + first / BLOCK, pitch / BLOCK, count, blocks, wide);
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t column = first + block * BLOCK;
            floats part[STREAMS];
            for (int i = 0; i < count; i++) {
                PREFETCH(w + i * pitch + column);
                part[i] = load_int8(w + i * pitch + column) * load_float32(x + column);
            }
            for (int k = LANES; k < BLOCK; k += LANES)
                for (int i = 0; i < count; i++)
                    part[i] += load_int8(w + i * pitch + column + k) * load_float32(x + column + k);
            for (int i = 0; i < count; i++)
                sum[i] += part[i] * wide[i][block];
        }
    }
    for (int i = 0; i < count; i++)
        sums[i] = add_lanes(sum[i]);
}

/* x is `shifted`: see product.h. Nibbles are masked where they stand, which leaves 16^k times their value. */
INLINE void dots_int4(
    const struct matrix *matrix, int64_t row, int64_t apart, const int count, const float *x, const float *block_sums,
    float sums[STREAMS]
)
{
    const int64_t padded = round_up(matrix->columns, ROW_MULTIPLE), pitch = apart * padded;
    const char *w = (const char *)matrix->values + row * (padded / 2);
    const uint16_t *scales = matrix->scales + row * (padded / BLOCK) * 2;
    float wide[STREAMS][2 * SCALED_BLOCKS];
    floats sum[STREAMS] = {{0}};
    for (int64_t first = 0; first < padded; first += SCALED_BLOCKS * BLOCK) {
        const int64_t blocks = minimum(padded - first, SCALED_BLOCKS * BLOCK) / BLOCK;
        widen_scales(scales + first / BLOCK * 2, pitch / BLOCK * 2, count, 2 * blocks, wide);
        /* The offsets' part: block sums stand where offsets do, zeros where scales do. */
        for (int i = 0; i < count; i++) {
            for (int64_t k = 2 * blocks; k % LANES; k++)
                wide[i][k] = 0;
            for (int64_t k = 0; k < 2 * blocks; k += LANES)
                sum[i] += load_float32(wide[i] + k) * load_float32(block_sums + first / BLOCK * 2 + k);
        }
        for (int64_t block = 0; block < blocks; block += 2) {
            const int64_t column = first + block * BLOCK;
            for (int i = 0; i < count; i++) {
                const char *from = w + (i * pitch + column) / 2;
                uints words = load_uint32(from);
                PREFETCH(from);
                for (int half = 0; half < 2; half++, words >>= 16) {
                    const float *input = x + column + half * BLOCK;
                    floats part = to_floats(words & 0xf) * load_float32(input);
                    part += to_floats(words & 0xf0) * load_float32(input + LANES);
                    part += to_floats(words & 0xf00) * load_float32(input + 2 * LANES);
                    part += to_floats(words & 0xf000) * load_float32(input + 3 * LANES);
                    sum[i] += part * wide[i][2 * (block + half)];
                }
            }
        }
    }
    for (int i = 0; i < count; i++)
        sums[i] = add_lanes(sum[i]);
}

INLINE float bias_of(const struct matrix *matrix, int64_t row) { return matrix->bias ? matrix->bias[row] : 0.0f; }

INLINE void dots(
    int64_t format, const struct matrix *matrix, const struct inputs *inputs, int64_t row, int64_t apart,
    const int count, float *output
)
{
    float sums[STREAMS];
    if (format == FLOAT32)
        dots_float32(matrix, row, apart, count, inputs->values, sums);
    else if (format == INT8)
        dots_int8(matrix, row, apart, count, inputs->values, sums);
    else if (format == INT4)
        dots_int4(matrix, row, apart, count, inputs->shifted, inputs->block_sums, sums);
    else
        dots_half(format, matrix, row, apart, count, inputs->values, sums);
    for (int i = 0; i < count; i++)
        output[row + i * apart] = sums[i] + bias_of(matrix, row + i * apart);
}

INLINE void dots_of_share(
    int64_t format, const struct matrix *matrix, const struct inputs *inputs, int64_t first, int64_t last, float *output
)
{
    const int64_t apart = (last - first) / STREAMS;
    for (int64_t row = first; row < first + apart; row++)
        dots(format, matrix, inputs, row, apart, STREAMS, output);
    for (int64_t row = first + apart * STREAMS; row < last; row++)
        dots(format, matrix, inputs, row, 0, 1, output);
}

static void product_of_one(const struct matrix *matrix, const struct inputs *inputs, int64_t first, int64_t last, float *output)
{
    switch (matrix->format) {
    case FLOAT32:
        dots_of_share(FLOAT32, matrix, inputs, first, last, output);
        break;
    case BFLOAT16:
        dots_of_share(BFLOAT16, matrix, inputs, first, last, output);
        break;
    case FLOAT16:
        dots_of_share(FLOAT16, matrix, inputs, first, last, output);
        break;
    case INT8:
        dots_of_share(INT8, matrix, inputs, first, last, output);
        break;
    default:
        dots_of_share(INT4, matrix, inputs, first, last, output);
    }
}

/* ---- several rows of input: a panel of weights is decoded once and multiplied with all of them ---- */

struct panel {
    const float *rows[TILE_ROWS];
    int64_t columns; /* a multiple of eight */
    float decoded[TILE_ROWS][PANEL_COLUMNS];
};

/* Columns [start, start + count) of `rows` weight rows from `row` on; missing rows repeat the last. */
INLINE void fill_panel(struct panel *panel, const struct matrix *matrix, int64_t row, int64_t rows, int64_t start, int64_t count)
{
    const int in_place = matrix->format == FLOAT32 && count % LANES == 0;
    panel->columns = is_quantized(matrix) ? round_up(count, ROW_MULTIPLE) : round_up(count, LANES);
    for (int64_t r = 0; r < TILE_ROWS; r++) {
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

/* lanes[i][r] = the products of `count` inputs with the panel, added to what is there unless these are the first columns. */
INLINE void panel_tile(
    const struct panel *panel, const float *x, int64_t pitch, const int count, int is_first, floats (*lanes)[TILE_ROWS]
)
{
    floats sums[TILE_INPUTS][TILE_ROWS] = {{{0}}};
    for (int i = 0; i < count && !is_first; i++)
        for (int r = 0; r < TILE_ROWS; r++)
            sums[i][r] = lanes[i][r];
    tile_lanes(panel->rows, x, pitch, panel->columns, count, sums);
    for (int i = 0; i < count; i++)
        for (int r = 0; r < TILE_ROWS; r++)
            lanes[i][r] = sums[i][r];
}

/* The panel times all inputs. */
static void panel_product(const struct panel *panel, const struct inputs *inputs, int64_t start, floats (*lanes)[TILE_ROWS])
{
    const int64_t tiles = (inputs->rows + TILE_INPUTS - 1) / TILE_INPUTS;
    /* Tiles differ by one input at most: one of a single input would wait for its sums. */
    for (int64_t number = 0, input = 0, next; number < tiles; number++, input = next) {
        next = inputs->rows * (number + 1) / tiles;
        const float *x = inputs->values + input * inputs->pitch + start;
        if (next - input == 3)
            panel_tile(panel, x, inputs->pitch, 3, start == 0, lanes + input);
        else if (next - input == 2)
            panel_tile(panel, x, inputs->pitch, 2, start == 0, lanes + input);
        else
            panel_tile(panel, x, inputs->pitch, 1, start == 0, lanes + input);
    }
}

static void product_of_several(
    const struct matrix *matrix, const struct inputs *inputs, int64_t first, int64_t last, float *output, int64_t pitch
)
{
    const int64_t parts = (matrix->columns + PANEL_COLUMNS - 1) / PANEL_COLUMNS;
    const int64_t width = round_up((matrix->columns + parts - 1) / parts, ROW_MULTIPLE);
    struct panel panel;
    floats lanes[INPUTS_MAX][TILE_ROWS];
    for (int64_t row = first; row < last; row += TILE_ROWS) {
        const int64_t rows = minimum(TILE_ROWS, last - row);
        for (int64_t start = 0; start < matrix->columns; start += width) {
            fill_panel(&panel, matrix, row, rows, start, minimum(width, matrix->columns - start));
            panel_product(&panel, inputs, start, lanes);
        }
        for (int64_t input = 0; input < inputs->rows; input++) {
            float sums[TILE_ROWS];
            add_lanes_of_four(lanes[input], sums);
            for (int64_t r = 0; r < rows; r++)
                output[input * pitch + row + r] = sums[r] + bias_of(matrix, row + r);
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
