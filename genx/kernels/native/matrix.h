/* Weight matrices as they lie in memory, one format a kind of number. */
#ifndef GENX_MATRIX_H
#define GENX_MATRIX_H

#include "vector.h"

/* The numbers are shared with genx/kernels/library.py. */
enum format {
    FLOAT32 = 0,
    BFLOAT16 = 1,
    FLOAT16 = 2,
    INT8 = 3, /* blocks of 32 columns: weight = scale * value */
    INT4 = 4  /* blocks of 32 columns: weight = scale * value + offset, value 0 to 15 */
};

/* Columns of a quantised block, and the multiple to which quantised rows are filled up with zero weights. */
#define BLOCK 32
#define ROW_MULTIPLE 64

/* A matrix [rows, columns], each row contiguous.
 *
 * INT8: values int8 [rows, padded], scales float16 [rows, padded / 32].
 * INT4: values [rows, padded / 64, 8] little-endian words of 32 bits, scales float16 [rows, padded / 32, 2], scale and
 *       offset. Nibble k of word i holds column 8 k + i of its 64: one mask and shift gives eight neighbours.
 */
struct matrix {
    const void *values;
    const uint16_t *scales;
    const float *bias; /* [rows] or null */
    int64_t rows, columns;
    int64_t format;
};

INLINE int is_quantized(const struct matrix *matrix) { return matrix->format == INT8 || matrix->format == INT4; }

INLINE floats nibbles(uints words, int which) { return to_floats((words >> (4 * which)) & 15); }

/* Write columns [first, first + count) of a row as floats, and zeros up to the next multiple of eight.
 * For quantised formats `first` and `count` are multiples of 64. */
void decode_row(const struct matrix *matrix, int64_t row, int64_t first, int64_t count, float *to);

#endif
