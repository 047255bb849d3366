#include "project.h"

#include <stdlib.h>

#include "activation.h"
#include "product.h"
#include "team.h"

#define UNIT LINE /* outputs that a thread takes at once, so that no two threads write to one cache line */

/* A member's part of a projection, for some of its rows. */
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

static void multiply(const struct work *work, int64_t first, int64_t last)
{
    const struct projection *projection = work->projection;
    const int64_t width = projection->outputs;
    if (projection->is_gated) {
        product(&projection->matrices[0], &work->inputs, first, last, work->output, width);
        product(&projection->matrices[1], &work->inputs, first, last, work->gated, width);
        return;
    }
    for (int64_t i = 0, before = 0; i < projection->count; i++) {
        const struct matrix *matrix = &projection->matrices[i];
        const int64_t from = first > before ? first - before : 0;
        const int64_t to = minimum(last - before, matrix->rows);
        if (from < to)
            product(matrix, &work->inputs, from, to, work->output + before, width);
        before += matrix->rows;
    }
}

/* What INT4 multiplies its values and its offsets with: see product.h. */
static void prepare_int4(const float *x, int64_t pitch, float *shifted, float *sums)
{
    for (int64_t start = 0; start < pitch; start += BLOCK) {
        floats sum = {0};
        float factor = 1;
        for (int64_t i = start; i < start + BLOCK; i += LANES, factor /= 16) {
            const floats eight = load_float32(x + i);
            sum += eight;
            store_float32(shifted + i, eight * factor);
        }
        sums[start / BLOCK * 2] = 0;
        sums[start / BLOCK * 2 + 1] = add_lanes(sum);
    }
    for (int64_t k = pitch / BLOCK * 2; k % LANES; k++)
        sums[k] = 0;
}

/* Matrices side by side may have formats of their own. */
static int has_int4(const struct projection *projection)
{
    for (int64_t i = 0; i < projection->count; i++)
        if (projection->matrices[i].format == INT4)
            return 1;
    return 0;
}

/* Floats that each member prepares for itself, some rows at a time: cheaper than to share them out and wait. */
struct preparation {
    int64_t pitch;
    int64_t prepared, shifted, sums, all;
};

static struct preparation preparation_of(const struct projection *projection, int64_t rows)
{
    rows = minimum(rows, INPUTS_MAX);
    const int64_t pitch = round_up(projection->columns, ROW_MULTIPLE);
    const int is_int4 = rows == 1 && has_int4(projection);
    struct preparation size = {pitch, 0, 0, 0, 0};
    if (projection->norm.kind || pitch != projection->columns)
        size.prepared = rows * pitch;
    if (is_int4) {
        size.shifted = pitch;
        size.sums = round_up(pitch / BLOCK * 2, LANES);
    }
    size.all = round_up(size.prepared + size.shifted + size.sums, UNIT);
    return size;
}

static int64_t gated_size(const struct projection *projection, int64_t rows)
{
    return projection->is_gated ? round_up(rows * projection->outputs, UNIT) : 0;
}

int64_t project_memory(const struct projection *projection, int64_t rows)
{
    return gated_size(projection, rows) + team_size() * preparation_of(projection, rows).all;
}

static struct inputs prepare(const struct projection *projection, const float *input, int64_t rows, float *memory)
{
    const struct preparation size = preparation_of(projection, rows);
    const int64_t columns = projection->columns;
    float *shifted = memory + size.prepared, *sums = shifted + size.shifted;
    const struct inputs inputs = {size.prepared ? memory : input, rows, size.pitch, shifted, sums};
    for (int64_t row = 0; size.prepared && row < rows; row++) {
        float *to = memory + row * size.pitch;
        if (projection->norm.kind)
            normalize(&projection->norm, input + row * columns, columns, to);
        else
            memcpy(to, input + row * columns, (size_t)columns * sizeof *to);
        memset(to + columns, 0, (size_t)(size.pitch - columns) * sizeof *to);
    }
    if (size.shifted)
        prepare_int4(inputs.values, size.pitch, shifted, sums);
    return inputs;
}

void project(
    const struct projection *projection, const float *input, const float *residual, float *output, int64_t rows,
    float *memory, const struct member *me
)
{
    float *own = memory + gated_size(projection, rows) + me->index * preparation_of(projection, rows).all;
    int64_t first, last;
    team_share((projection->outputs + UNIT - 1) / UNIT, me, &first, &last);
    first *= UNIT;
    last = minimum(last * UNIT, projection->outputs);
    if (first >= last)
        return;
    const int64_t turns = (rows + INPUTS_MAX - 1) / INPUTS_MAX;
    for (int64_t turn = 0, row = 0, next; turn < turns; turn++, row = next) {
        next = rows * (turn + 1) / turns;
        const int64_t before = row * projection->outputs;
        const struct work work = {
            projection, prepare(projection, input + row * projection->columns, next - row, own),
            residual ? residual + before : NULL, memory + before, output + before
        };
        multiply(&work, first, last);
        finish(&work, first, last);
    }
}

int64_t project_work(const struct projection *projection, int64_t rows)
{
    int64_t weights = 0;
    for (int64_t i = 0; i < projection->count; i++)
        weights += projection->matrices[i].rows;
    return weights * projection->columns * rows;
}

struct projecting {
    const struct projection *projection;
    const float *input, *residual;
    float *output;
    int64_t rows;
    float *memory;
};

static void project_share(const void *job, const struct member *me)
{
    const struct projecting *work = job;
    project(work->projection, work->input, work->residual, work->output, work->rows, work->memory, me);
}

/* `project` by a team. Returns 0, or 1 if there is no memory. */
int32_t genx_project(
    const struct projection *projection, const float *input, const float *residual, float *output, int64_t rows
)
{
    const int64_t size = project_memory(projection, rows);
    float *memory = size ? malloc((size_t)size * sizeof *memory) : NULL;
    if (size && !memory)
        return 1;
    const struct projecting work = {projection, input, residual, output, rows, memory};
    team_run(project_share, &work, project_work(projection, rows));
    free(memory);
    return 0;
}
