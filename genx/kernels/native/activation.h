/* Activations of the feed-forward block. */
#ifndef GENX_ACTIVATION_H
#define GENX_ACTIVATION_H

#include <stdint.h>

/* The numbers are shared with genx/kernels/library.py. */
enum activation { IDENTITY = 0, SILU = 1, TANH_GELU = 2, GELU = 3, RELU = 4 };

/* Apply an activation to `values` [count] in place. */
void activate(int64_t activation, float *values, int64_t count);

#endif
