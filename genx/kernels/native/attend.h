/* Attention of new tokens over the cache: rotate queries and keys, write keys and values into their slots, attend.
 *
 * The token with position p of its row lies in slot p mod capacity; see genx/core/cache.py for why every slot up to
 * there is in the window of each query that this operation is given.
 */
#ifndef GENX_ATTEND_H
#define GENX_ATTEND_H

#include <stdint.h>

#include "norm.h"
#include "team.h"

struct attention {
    int64_t heads, groups, head_size;  /* H, G, D */
    float scale;                       /* of the scores */
    float softcap;                     /* scores become softcap tanh(score / softcap); 0: they stay */
    const float *sinks;                /* [H] scores that take part in the softmax and have no value; or null */
    struct norm query_norm, key_norm;  /* of each head before it rotates; of kind 0: none */
};

/* Tokens of a span at most. */
#define SPAN 8

/* The N tokens of a step, side by side, those of a row in turn. */
struct step {
    int64_t tokens;             /* N */
    const int64_t *rows;        /* [N] the row of each, which is a place among the caches */
    const int64_t *positions;   /* [N] in its row */
    const uint8_t *visible;     /* [N], 0 where a token is hidden and leaves nothing in the cache; or null */
    const float *cosine, *sine; /* [N, R] for the first R channels of a head; null where none rotate */
    int64_t angles;             /* R, even, at most D */
    int64_t spans;              /* runs of up to SPAN tokens of one row, which are attended from together */
    const int64_t *starts;      /* [spans + 1] the first token of each, and N */
};

/* The cache of each row: keys and values [G, capacity, D]. */
struct row_cache {
    float *keys, *values;
    int64_t capacity;
};

/* Floats of memory that `attend` needs. */
int64_t attend_memory(const struct attention *attention, const struct step *step, const struct row_cache *rows);

/* About how many multiplications it has. */
int64_t attend_work(const struct attention *attention, const struct step *step, const struct row_cache *rows);

/* A member's share of attending from `projected` [N, (H + 2 G) D] - each token's queries, keys and values, whose
 * queries and keys are rotated in place - over the cache of each row, into `output` [N, H D]. What a token mixes does
 * not depend, to the last bit, on the tokens beside it or on how many members there are. */
void attend(
    const struct attention *attention, const struct step *step, const struct row_cache *rows, float *projected,
    float *output, float *memory, const struct member *me
);

#endif
