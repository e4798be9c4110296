/* Vectors of floats as wide as the machine has them, in what GCC and Clang have in common. */

#include <stdint.h>

#ifdef __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif
#define INLINE static inline __attribute__((always_inline))

typedef float floats __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t choices __attribute__((vector_size(4 * LANES), aligned(4)));

/* What is not a number counts as positive, as it does in PyTorch: it must not go unnoticed. */
INLINE floats where_positive(floats condition, floats value) {
    return (floats)((choices)value & ~(condition <= 0));
}

/* Halves are added until one number is left, which a compiler keeps in registers. */
INLINE float sum(floats v) {
    typedef float eight __attribute__((vector_size(32)));
    typedef float four __attribute__((vector_size(16)));
    typedef float two __attribute__((vector_size(8)));
#if LANES == 16
    eight half = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
#else
    eight half = v;
#endif
    four quarter = __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
    two pair = __builtin_shufflevector(quarter, quarter, 0, 1) + __builtin_shufflevector(quarter, quarter, 2, 3);
    return pair[0] + pair[1];
}
