/* The first convolution of several networks over patches of bits, of which few are set: a filter's weights are added up
   where a bit is set, where a matrix product would multiply all of them. There are 16 filters:
   one vector of AVX-512, two of less.

   patches     [rows, inputs], a byte of 0 or 1 per input
   weight      [networks, inputs, 16], bias [networks, 16]
   activation  [networks, rows, 16], and error, the loss's derivative by it
   sums        [threads, networks, inputs + 1, 16]: each thread's part of the gradients, of the bias at the end */

#include <stdint.h>
#include <string.h>
#ifdef __AVX512BW__
#include <immintrin.h>
#endif

#ifdef __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif
#define PARTS (16 / LANES)
typedef float floats __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t choices __attribute__((vector_size(4 * LANES), aligned(4)));

#define MAX_INPUTS 1024
#define INLINE static inline __attribute__((always_inline))

/* Up to 64 bytes of 0 or 1 as the bits of a number. */
INLINE uint64_t as_bits(const uint8_t *bytes, int length) {
#ifdef __AVX512BW__
    __m512i values = _mm512_maskz_loadu_epi8(length < 64 ? (1ull << length) - 1 : ~0ull, bytes);
    return _mm512_test_epi8_mask(values, values);
#else
    uint64_t bits = 0, word;
    int i = 0;
    for (; i + 8 <= length; i += 8) {
        memcpy(&word, bytes + i, 8);
        bits |= (word * 0x0102040810204080ull >> 56) << i; /* byte j becomes bit j, where the first byte is lowest */
    }
    for (; i < length; i++) bits |= (uint64_t)bytes[i] << i;
    return bits;
#endif
}

/* Lists which inputs of a patch are set, and returns how many are. */
INLINE int set_inputs(const uint8_t *patch, int inputs, uint16_t *set) {
    int count = 0;
    for (int first = 0; first < inputs; first += 64) {
        uint64_t bits = as_bits(patch + first, inputs - first < 64 ? inputs - first : 64);
        for (; bits; bits &= bits - 1) set[count++] = first + __builtin_ctzll(bits);
    }
    return count;
}

/* What is not a number counts as positive, as it does in PyTorch: it must not go unnoticed. */
INLINE floats where_positive(floats condition, floats value) {
    return (floats)((choices)value & ~(condition <= 0));
}

/* activation = patches · weight + bias, or the positive part of it */
void forward(const uint8_t *patches, long rows, long inputs, long networks, const floats *weight, const floats *bias,
             floats *activation, long rectify, long threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long row = 0; row < rows; row++) {
        uint16_t set[MAX_INPUTS];
        int count = set_inputs(patches + row * inputs, inputs, set);
        for (int n = 0; n < networks; n++)
            for (int part = 0; part < PARTS; part++) {
                floats sum = bias[n * PARTS + part];
                for (int i = 0; i < count; i++) sum += weight[(n * inputs + set[i]) * PARTS + part];
                activation[(n * rows + row) * PARTS + part] = rectify ? where_positive(sum, sum) : sum;
            }
    }
}

/* sums = patchesᵀ · e and Σ e, where e is the error, or what of it an activation lets through */
void backward(const uint8_t *patches, long rows, long inputs, long networks, const floats *activation,
              const floats *error, floats *sums, long rectify, long threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int thread = 0; thread < threads; thread++) {
        int size = (inputs + 1) * PARTS;
        floats *own = sums + (long)thread * networks * size;
        memset(own, 0, sizeof(floats) * networks * size);
        for (long row = rows * thread / threads; row < rows * (thread + 1) / threads; row++) {
            uint16_t set[MAX_INPUTS + 1];
            int count = set_inputs(patches + row * inputs, inputs, set);
            set[count++] = inputs;
            for (int n = 0; n < networks; n++)
                for (int part = 0; part < PARTS; part++) {
                    long place = (n * rows + row) * PARTS + part;
                    floats passed = rectify ? where_positive(activation[place], error[place]) : error[place];
                    for (int i = 0; i < count; i++) own[n * size + set[i] * PARTS + part] += passed;
                }
        }
    }
}
