/* Eight floats at a time, written with the vector extension of GCC and Clang: one source for every processor.
 *
 * The compiler lowers it to what the target has (two SSE or NEON registers where there is no AVX). Intrinsics stand
 * only where compilers miss the one instruction that does it, each beside its portable form.
 */
#ifndef GENX_VECTOR_H
#define GENX_VECTOR_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define LANES 8
#define LINE 16 /* floats of a cache line */

typedef float floats __attribute__((vector_size(32)));
typedef int32_t ints __attribute__((vector_size(32)));
typedef uint32_t uints __attribute__((vector_size(32)));
typedef uint16_t halves __attribute__((vector_size(16)));
typedef int8_t bytes __attribute__((vector_size(8)));

INLINE int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE int64_t round_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

INLINE floats splat(float value) { return (floats){0} + value; }

INLINE floats choose(ints condition, floats where_true, floats where_false)
{
    return (floats)((condition & (ints)where_true) | (~condition & (ints)where_false));
}

INLINE floats load_float32(const float *from)
{
    floats loaded;
    memcpy(&loaded, from, sizeof loaded);
    return loaded;
}

INLINE void store_float32(float *to, floats values) { memcpy(to, &values, sizeof values); }

INLINE uints load_uint32(const void *from)
{
    uints loaded;
    memcpy(&loaded, from, sizeof loaded);
    return loaded;
}

INLINE floats load_bfloat16(const uint16_t *from)
{
#if defined(__AVX2__)
    return (floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from)), 16);
#else
    halves loaded;
    memcpy(&loaded, from, sizeof loaded);
    return (floats)(__builtin_convertvector(loaded, uints) << 16);
#endif
}

/* The bits of eight float16 numbers as floats. Shifted into place their exponent is 112 too small, which one product
 * repairs, subnormal numbers included; infinity and NaN keep the largest exponent. */
INLINE floats widen_float16(uints half)
{
    const uints magnitude = (half & 0x7fff) << 13;
    const uints finite = (uints)((floats)magnitude * 0x1p112f);
    const uints special = magnitude | 0x7f800000;
    const uints is_special = (uints)(magnitude >= (0x7c00u << 13));
    return (floats)((is_special & special) | (~is_special & finite) | ((half & 0x8000) << 16));
}

INLINE floats load_float16(const uint16_t *from)
{
#if defined(__AVX2__)
    return (floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
#else
    halves loaded;
    memcpy(&loaded, from, sizeof loaded);
    return widen_float16(__builtin_convertvector(loaded, uints));
#endif
}

INLINE float float16_value(uint16_t half)
{
#if defined(__AVX2__)
    return _cvtsh_ss(half);
#else
    return widen_float16((uints){half})[0];
#endif
}

INLINE void four_float16_values(const uint16_t *from, float to[4])
{
#if defined(__AVX2__)
    _mm_storeu_ps(to, _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)from)));
#else
    for (int i = 0; i < 4; i++)
        to[i] = float16_value(from[i]);
#endif
}

INLINE float bfloat16_value(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE floats load_int8(const int8_t *from)
{
#if defined(__AVX2__)
    return (floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)));
#else
    bytes loaded;
    memcpy(&loaded, from, sizeof loaded);
    return __builtin_convertvector(__builtin_convertvector(loaded, ints), floats);
#endif
}

INLINE floats to_floats(uints values) { return __builtin_convertvector((ints)values, floats); }

/* Sums are added in this order on every machine. */
INLINE float add_lanes(floats values)
{
#if defined(__AVX2__)
    const __m256 pairs = _mm256_hadd_ps((__m256)values, (__m256)values);
    const __m256 fours = _mm256_hadd_ps(pairs, pairs);
    return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1)));
#else
    return ((values[0] + values[1]) + (values[2] + values[3])) + ((values[4] + values[5]) + (values[6] + values[7]));
#endif
}

INLINE float largest_lane(floats values)
{
    float lane[LANES], largest;
    memcpy(lane, &values, sizeof lane);
    largest = lane[0];
    for (int i = 1; i < LANES; i++)
        largest = lane[i] > largest || lane[i] != lane[i] ? lane[i] : largest; /* NaN wins, and stays */
    return largest;
}

/* e to the power of each lane, to about one unit in the last place; NaN gives NaN.
 *
 * x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its series, 2^n by the exponent's bits. ln 2 is split in two so that
 * n ln 2 is exact. Results below the smallest normal number are 0.
 */
INLINE floats exponential(floats x)
{
    const float magic = 0x1.8p23f; /* added and taken away, it leaves the nearest integer, which its bits show */
    const floats high = splat(88.722839f), low = splat(-87.336545f);
    const floats clamped = choose(x > high, high, choose(x < low, low, x));
    const floats shifted = clamped * 1.44269504f + magic;
    const floats n = shifted - magic;
    const floats r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
    floats series = splat(1.0f / 5040);
    series = series * r + 1.0f / 720;
    series = series * r + 1.0f / 120;
    series = series * r + 1.0f / 24;
    series = series * r + 1.0f / 6;
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    /* 2^n in two factors, for n = 128 has no bits of its own. */
    const ints whole = (ints)shifted - (ints)splat(magic);
    const ints half = whole >> 1;
    const floats power = (floats)((half + 127) << 23) * series * (floats)((whole - half + 127) << 23);
    return choose(x > high, splat(__builtin_inff()), choose(x < low, splat(0.0f), power));
}

#endif
