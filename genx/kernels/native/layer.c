/* A whole layer of a pre-norm decoder, for steps so short that the calls of its parts would count. */
#include <stdlib.h>

#include "attend.h"
#include "project.h"

struct layer {
    const struct projection *into_heads; /* with the first norm; to queries, keys and values */
    const struct attention *attention;
    const struct projection *out_of_heads; /* added to the layer's input */
    const struct projection *inner;        /* with the second norm; the gated inner values */
    const struct projection *down;         /* added to what attention gave */
};

/* From `hidden` [B, T, C] to `output` [B, T, C]. Returns 0, or 1 if there is no memory. */
int32_t genx_layer(
    const struct layer *layer, const struct step *step, const struct row_cache *caches, const float *hidden, float *output
)
{
    const int64_t rows = step->batch * step->length;
    const int64_t projected_size = rows * layer->into_heads->outputs, mixed_size = rows * layer->out_of_heads->columns;
    const int64_t attended_size = rows * layer->out_of_heads->outputs, inner_size = rows * layer->inner->outputs;
    const int64_t size = projected_size + mixed_size + attended_size + inner_size;
    float *projected = malloc((size_t)size * sizeof *projected);
    if (!projected)
        return 1;
    float *mixed = projected + projected_size, *attended = mixed + mixed_size, *inner = attended + attended_size;
    const int32_t failed = genx_project(layer->into_heads, hidden, NULL, projected, rows)
        || genx_attend(layer->attention, step, caches, projected, mixed)
        || genx_project(layer->out_of_heads, mixed, hidden, attended, rows)
        || genx_project(layer->inner, attended, NULL, inner, rows)
        || genx_project(layer->down, inner, attended, output, rows);
    free(projected);
    return failed;
}
