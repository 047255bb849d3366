/* What the loader asks before it trusts the library. */
#include <stdint.h>

/* Raised with every change of a structure or an argument; genx/kernels/library.py holds the same number. */
int32_t genx_interface(void) { return 3; }

/* Whether this processor has what the variant for x86-64-v3 uses. */
int32_t genx_has_avx2(void)
{
#if defined(__x86_64__) || defined(__i386__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
    return 0;
#endif
}
