/* Layers of a pre-norm decoder one after the other, for steps so short that the calls of their parts would count: one
 * team works from the first to the last. */
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

/* Of each layer, and of the step in it: where its angles are, and the cache of each row. */
struct place {
    const struct layer *layer;
    const struct step *step;
    const struct row_cache *caches;
};

/* What members write for one another, the largest that any layer needs. */
struct memory {
    float *projected, *mixed, *attended, *inner, *parts;
};

struct work {
    const struct place *places;
    int64_t count, rows;
    float *hidden; /* [N, C], a layer's input and output */
    struct memory memory;
};

static void layers_share(const void *job, const struct member *me)
{
    const struct work *work = job;
    const struct memory memory = work->memory;
    const int64_t rows = work->rows;
    for (int64_t i = 0; i < work->count; i++) {
        const struct layer *layer = work->places[i].layer;
        project(layer->into_heads, work->hidden, NULL, memory.projected, rows, memory.parts, me);
        team_wait(me);
        attend(
            layer->attention, work->places[i].step, work->places[i].caches, memory.projected, memory.mixed, memory.parts,
            me
        );
        team_wait(me);
        project(layer->out_of_heads, memory.mixed, work->hidden, memory.attended, rows, memory.parts, me);
        team_wait(me);
        project(layer->inner, memory.attended, NULL, memory.inner, rows, memory.parts, me);
        team_wait(me);
        project(layer->down, memory.inner, memory.attended, work->hidden, rows, memory.parts, me);
        team_wait(me);
    }
}

INLINE void raise(int64_t *most, int64_t size) { *most = size > *most ? size : *most; }

/* From `input` [N, C] through `count` layers to `output` [N, C]. Returns 0, or 1 if there is no memory. */
int32_t genx_layers(const struct place *places, int64_t count, const float *input, float *output)
{
    const struct step *step = places[0].step;
    const int64_t rows = step->tokens;
    int64_t projected = 0, mixed = 0, attended = 0, inner = 0, parts = 0, multiplications = 0;
    for (int64_t i = 0; i < count; i++) {
        const struct layer *layer = places[i].layer;
        const struct projection *projections[] = {layer->into_heads, layer->out_of_heads, layer->inner, layer->down};
        raise(&projected, rows * layer->into_heads->outputs);
        raise(&mixed, rows * layer->out_of_heads->columns);
        raise(&attended, rows * layer->out_of_heads->outputs);
        raise(&inner, rows * layer->inner->outputs);
        raise(&parts, attend_memory(layer->attention, places[i].step, places[i].caches));
        for (int k = 0; k < 4; k++) {
            raise(&parts, project_memory(projections[k], rows));
            multiplications += project_work(projections[k], rows);
        }
    }
    float *memory = malloc((size_t)(projected + mixed + attended + inner + parts) * sizeof *memory);
    if (!memory)
        return 1;
    memcpy(output, input, (size_t)(rows * places[0].layer->down->outputs) * sizeof *output);
    const struct memory split = {
        memory, memory + projected, memory + projected + mixed, memory + projected + mixed + attended,
        memory + projected + mixed + attended + inner
    };
    const struct work work = {places, count, rows, output, split};
    team_run(layers_share, &work, multiplications);
    free(memory);
    return 0;
}
