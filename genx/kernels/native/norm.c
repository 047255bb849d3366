#include "norm.h"

#include <math.h>

#include "team.h"
#include "vector.h"

static float mean(const float *from, int64_t columns)
{
    floats sum = {0};
    float rest = 0;
    int64_t column = 0;
    for (; column + LANES <= columns; column += LANES)
        sum += load_float32(from + column);
    for (; column < columns; column++)
        rest += from[column];
    return (add_lanes(sum) + rest) / (float)columns;
}

/* Mean of the squared distances to `centre`. */
static float mean_square(const float *from, int64_t columns, float centre)
{
    floats sum = {0};
    float rest = 0;
    int64_t column = 0;
    for (; column + LANES <= columns; column += LANES) {
        const floats distance = load_float32(from + column) - centre;
        sum += distance * distance;
    }
    for (; column < columns; column++)
        rest += (from[column] - centre) * (from[column] - centre);
    return (add_lanes(sum) + rest) / (float)columns;
}

void normalize(const struct norm *norm, const float *from, int64_t columns, float *to)
{
    const float centre = norm->kind == LAYER_NORM ? mean(from, columns) : 0.0f;
    const float factor = 1.0f / sqrtf(mean_square(from, columns, centre) + norm->epsilon);
    for (int64_t column = 0; column < columns; column++)
        to[column] = (from[column] - centre) * factor * norm->weight[column];
    if (norm->bias)
        for (int64_t column = 0; column < columns; column++)
            to[column] += norm->bias[column];
}

struct normalization {
    const struct norm *norm;
    const float *input;
    float *output;
    int64_t rows, columns;
};

static void normalize_share(const void *job, const struct member *me)
{
    const struct normalization *work = job;
    int64_t first, last;
    team_share(work->rows, me, &first, &last);
    for (int64_t row = first; row < last; row++)
        normalize(work->norm, work->input + row * work->columns, work->columns, work->output + row * work->columns);
}

/* Normalise `rows` rows of `input` [rows, columns] to `output`. */
void genx_normalize(const struct norm *norm, const float *input, float *output, int64_t rows, int64_t columns)
{
    const struct normalization work = {norm, input, output, rows, columns};
    team_run(normalize_share, &work, rows * columns);
}
