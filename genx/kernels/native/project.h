/* One projection of a model, with what stands before and after it:
 *
 *     normalise -> multiply with up to three matrices -> add biases -> activate (and gate) -> add the residual
 */
#ifndef GENX_PROJECT_H
#define GENX_PROJECT_H

#include "matrix.h"
#include "norm.h"
#include "team.h"

#define MATRICES_MAX 3

/* Of several matrices the outputs stand side by side, as of one whose rows are theirs in turn; of a gated pair,
 * activation(first) * second takes the place of the first, and there is nothing else. */
struct projection {
    struct matrix matrices[MATRICES_MAX];
    int64_t count;
    int64_t columns;
    int64_t outputs; /* a row's, after gating */
    int64_t activation;
    int64_t is_gated;
    struct norm norm; /* of kind 0: none */
};

/* Floats of memory that `project` needs. */
int64_t project_memory(const struct projection *projection, int64_t rows);

/* About how many multiplications it has. */
int64_t project_work(const struct projection *projection, int64_t rows);

/* A member's share of projecting `rows` rows of `input` [rows, columns] to `output` [rows, outputs]; `residual`
 * [rows, outputs] or null. */
void project(
    const struct projection *projection, const float *input, const float *residual, float *output, int64_t rows,
    float *memory, const struct member *me
);

#endif
