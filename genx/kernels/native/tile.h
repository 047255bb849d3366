/* Products of a few rows with a few others, the heart of every operation on several rows of input. */
#ifndef GENX_TILE_H
#define GENX_TILE_H

#include "vector.h"

/* Twelve sums and what is multiplied fill the sixteen registers of AVX2. */
#define TILE_ROWS 4
#define TILE_INPUTS 3

/* lanes[i][r] += rows[r] * input i, lane by lane, for `count` inputs over `columns` columns, a multiple of eight. */
INLINE void tile_lanes(
    const float *const rows[TILE_ROWS], const float *inputs, int64_t pitch, int64_t columns, const int count,
    floats lanes[TILE_INPUTS][TILE_ROWS]
)
{
    for (int64_t column = 0; column < columns; column += LANES) {
        floats input[TILE_INPUTS];
        for (int i = 0; i < count; i++)
            input[i] = load_float32(inputs + i * pitch + column);
        for (int r = 0; r < TILE_ROWS; r++) {
            const floats row = load_float32(rows[r] + column);
            for (int i = 0; i < count; i++)
                lanes[i][r] += row * input[i];
        }
    }
}

/* sums[r] = the sum of lanes[r], each in the order of add_lanes. */
INLINE void add_lanes_of_four(const floats lanes[TILE_ROWS], float sums[TILE_ROWS])
{
#if defined(__AVX2__)
    const __m256 first = _mm256_hadd_ps((__m256)lanes[0], (__m256)lanes[1]);
    const __m256 second = _mm256_hadd_ps((__m256)lanes[2], (__m256)lanes[3]);
    const __m256 halves = _mm256_hadd_ps(first, second);
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
#else
    for (int r = 0; r < TILE_ROWS; r++)
        sums[r] = add_lanes(lanes[r]);
#endif
}

#endif
