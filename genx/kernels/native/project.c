#include "project.h"

#include <stdlib.h>

#include "activation.h"
#include "product.h"
#include "team.h"

#define UNIT 16 /* outputs that a thread takes at once: a cache line of floats, so that no two threads write to one */

struct work {
    const struct projection *projection;
    struct inputs inputs;
    const float *residual; /* [rows, outputs] or null */
    float *gated;          /* [rows, outputs], of a gated pair the second's products */
    float *output;         /* [rows, outputs] */
};

/* Outputs [first, last) of every row, once their products are there. */
static void finish(const struct work *work, int64_t first, int64_t last)
{
    const struct projection *projection = work->projection;
    for (int64_t row = 0; row < work->inputs.rows; row++) {
        float *output = work->output + row * projection->outputs;
        activate(projection->activation, output + first, last - first);
        if (projection->is_gated) {
            const float *gated = work->gated + row * projection->outputs;
            for (int64_t i = first; i < last; i++)
                output[i] *= gated[i];
        }
        if (work->residual) {
            const float *residual = work->residual + row * projection->outputs;
            for (int64_t i = first; i < last; i++)
                output[i] += residual[i];
        }
    }
}

static void project_share(const void *job, int64_t member, int64_t members)
{
    const struct work *work = job;
    const struct projection *projection = work->projection;
    const int64_t width = projection->outputs;
    int64_t first, last, before = 0;
    team_share((width + UNIT - 1) / UNIT, member, members, &first, &last);
    first *= UNIT;
    last = minimum(last * UNIT, width);
    if (first >= last)
        return;
    if (projection->is_gated) {
        product(&projection->matrices[0], &work->inputs, first, last, work->output, width);
        product(&projection->matrices[1], &work->inputs, first, last, work->gated, width);
    } else {
        for (int64_t i = 0; i < projection->count; i++) {
            const struct matrix *matrix = &projection->matrices[i];
            const int64_t from = first > before ? first - before : 0;
            const int64_t to = minimum(last - before, matrix->rows);
            if (from < to)
                product(matrix, &work->inputs, from, to, work->output + before, width);
            before += matrix->rows;
        }
    }
    finish(work, first, last);
}

/* What INT4 multiplies its values and its offsets with. */
static void prepare_int4(const float *x, int64_t pitch, float *shifted, float *sums)
{
    for (int64_t start = 0; start < pitch; start += BLOCK, sums += LANES) {
        floats sum = {0};
        float factor = 1;
        for (int64_t i = start; i < start + BLOCK; i += LANES, factor /= 16) {
            const floats eight = load_float32(x + i);
            sum += eight;
            store_float32(shifted + i, eight * factor);
        }
        store_float32(sums, sum);
    }
}

static int64_t multiplications(const struct projection *projection, int64_t rows)
{
    int64_t weights = 0;
    for (int64_t i = 0; i < projection->count; i++)
        weights += projection->matrices[i].rows;
    return weights * projection->columns * rows;
}

/* Matrices side by side may have formats of their own. */
static int has_int4(const struct projection *projection)
{
    for (int64_t i = 0; i < projection->count; i++)
        if (projection->matrices[i].format == INT4)
            return 1;
    return 0;
}

int32_t genx_project(
    const struct projection *projection, const float *input, const float *residual, float *output, int64_t rows
)
{
    const int64_t columns = projection->columns;
    const int64_t pitch = round_up(columns, ROW_MULTIPLE);
    const int prepares = projection->norm.kind || pitch != columns;
    const int is_int4 = rows == 1 && has_int4(projection);
    const int64_t prepared_size = prepares ? rows * pitch : 0;
    const int64_t shifted_size = is_int4 ? pitch : 0;
    const int64_t sums_size = is_int4 ? pitch / BLOCK * LANES : 0;
    const int64_t gated_size = projection->is_gated ? rows * projection->outputs : 0;
    const int64_t size = prepared_size + shifted_size + sums_size + gated_size;
    float *memory = size ? malloc((size_t)size * sizeof *memory) : NULL;
    if (size && !memory)
        return 1;
    float *shifted = memory + prepared_size, *sums = shifted + shifted_size, *gated = sums + sums_size;
    const struct inputs inputs = {prepares ? memory : input, rows, pitch, shifted, sums};
    const struct work work = {projection, inputs, residual, gated, output};
    if (prepares)
        for (int64_t row = 0; row < rows; row++) {
            float *to = memory + row * pitch;
            if (projection->norm.kind)
                normalize(&projection->norm, input + row * columns, columns, to);
            else
                memcpy(to, input + row * columns, (size_t)columns * sizeof *to);
            memset(to + columns, 0, (size_t)(pitch - columns) * sizeof *to);
        }
    if (is_int4)
        prepare_int4(inputs.values, pitch, shifted, sums);
    team_run(project_share, &work, multiplications(projection, rows));
    free(memory);
    return 0;
}
