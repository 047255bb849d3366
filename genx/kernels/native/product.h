/* Matrix times a few rows of input. */
#ifndef GENX_PRODUCT_H
#define GENX_PRODUCT_H

#include "matrix.h"

/* The most rows of input that are multiplied at once: they, and their sums, stay in the second-level cache. */
#define INPUTS_MAX 96

/* At most INPUTS_MAX rows of input [rows, pitch], filled up with zeros from `columns` to `pitch`, a multiple of 64. */
struct inputs {
    const float *values;
    int64_t rows, pitch;
    /* For one row and INT4, which multiplies nibbles where they stand: [pitch] values of which each eight are divided
     * by 1, 16, 256, 4096 in turn, exactly, and for each block a zero and its sum, filled up with zeros to a multiple
     * of eight. */
    const float *shifted, *block_sums;
};

/* Outputs [first, last) of every row of input: output[row * pitch + i] = weight row i . input row + bias i.
 *
 * Each sum is made by one thread in an order of its own: the same for any number of threads, and for any number of
 * input rows from two on. A single row has another order, and another last bit. */
void product(
    const struct matrix *matrix, const struct inputs *inputs, int64_t first, int64_t last, float *output, int64_t pitch
);

#endif
