#include "matrix.h"

#include "team.h"

INLINE floats load_as_floats(int64_t format, const void *row, int64_t column)
{
    if (format == FLOAT32)
        return load_float32((const float *)row + column);
    if (format == BFLOAT16)
        return load_bfloat16((const uint16_t *)row + column);
    return load_float16((const uint16_t *)row + column);
}

INLINE void decode_float_row(int64_t format, const struct matrix *matrix, int64_t row, int64_t first, int64_t count, float *to)
{
    const int64_t size = format == FLOAT32 ? 4 : 2;
    const char *from = (const char *)matrix->values + (row * matrix->columns + first) * size;
    const int64_t whole = count / LANES * LANES;
    for (int64_t column = 0; column < whole; column += LANES)
        store_float32(to + column, load_as_floats(format, from, column));
    if (whole < count) {
        char rest[LANES * 4] = {0};
        memcpy(rest, from + whole * size, (size_t)((count - whole) * size));
        store_float32(to + whole, load_as_floats(format, rest, 0));
    }
}

static void decode_int8_row(const struct matrix *matrix, int64_t row, int64_t first, int64_t count, float *to)
{
    const int64_t padded = round_up(matrix->columns, ROW_MULTIPLE);
    const int8_t *from = (const int8_t *)matrix->values + row * padded + first;
    const uint16_t *scales = matrix->scales + (row * padded + first) / BLOCK;
    for (int64_t column = 0; column < count; column += BLOCK, scales++) {
        const float scale = float16_value(*scales);
        for (int64_t i = column; i < column + BLOCK; i += LANES)
            store_float32(to + i, load_int8(from + i) * scale);
    }
}

static void decode_int4_row(const struct matrix *matrix, int64_t row, int64_t first, int64_t count, float *to)
{
    const int64_t padded = round_up(matrix->columns, ROW_MULTIPLE);
    const char *from = (const char *)matrix->values + (row * padded + first) / 2;
    const uint16_t *scales = matrix->scales + (row * padded + first) / BLOCK * 2;
    for (int64_t column = 0; column < count; column += 2 * BLOCK, from += 32, scales += 4) {
        const uints words = load_uint32(from);
        float pairs[4];
        four_float16_values(scales, pairs);
        for (int k = 0; k < 8; k++)
            store_float32(to + column + k * LANES, nibbles(words, k) * pairs[k / 4 * 2] + pairs[k / 4 * 2 + 1]);
    }
}

void decode_row(const struct matrix *matrix, int64_t row, int64_t first, int64_t count, float *to)
{
    switch (matrix->format) {
    case FLOAT32:
        decode_float_row(FLOAT32, matrix, row, first, count, to);
        break;
    case BFLOAT16:
        decode_float_row(BFLOAT16, matrix, row, first, count, to);
        break;
    case FLOAT16:
        decode_float_row(FLOAT16, matrix, row, first, count, to);
        break;
    case INT8:
        decode_int8_row(matrix, row, first, count, to);
        break;
    default:
        decode_int4_row(matrix, row, first, count, to);
    }
}

struct expansion {
    const struct matrix *matrix;
    int64_t first, last;
    float *to;
};

static void expand_share(const void *job, const struct member *me)
{
    const struct expansion *expansion = job;
    const struct matrix *matrix = expansion->matrix;
    const int64_t columns = matrix->columns;
    const int64_t whole = columns / ROW_MULTIPLE * ROW_MULTIPLE;
    float rest[ROW_MULTIPLE];
    int64_t first, last;
    team_share(expansion->last - expansion->first, me, &first, &last);
    for (int64_t row = first; row < last; row++) {
        float *to = expansion->to + row * columns;
        decode_row(matrix, expansion->first + row, 0, whole, to);
        if (whole < columns) {
            const int64_t count = is_quantized(matrix) ? ROW_MULTIPLE : columns - whole;
            decode_row(matrix, expansion->first + row, whole, count, rest);
            memcpy(to + whole, rest, (size_t)(columns - whole) * sizeof *to);
        }
    }
}

/* Rows [first, last) as floats [last - first, columns]. */
void genx_expand(const struct matrix *matrix, int64_t first, int64_t last, float *to)
{
    const struct expansion expansion = {matrix, first, last, to};
    team_run(expand_share, &expansion, (last - first) * matrix->columns);
}
