/* Normalisation of one row. */
#ifndef GENX_NORM_H
#define GENX_NORM_H

#include <stdint.h>

/* The numbers are shared with genx/kernels/library.py. */
enum norm_kind { ROOT_MEAN_SQUARE = 1, LAYER_NORM = 2 };

struct norm {
    const float *weight; /* [columns] */
    const float *bias;   /* [columns] or null */
    int64_t kind;
    float epsilon;
};

/* Normalise `from` [columns] into `to`. */
void normalize(const struct norm *norm, const float *from, int64_t columns, float *to);

#endif
