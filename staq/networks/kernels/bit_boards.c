/* The first convolution of several networks over boards of bits, of which few are set: each bit that is set adds the
   weights of its filters to the outputs it reaches, where a matrix product would multiply all of them. There are 16
   filters: one vector of AVX-512, two of less. Stride 1, no padding.

   boards      [boards, height, width, channels], a byte of 0 or 1 per input
   weight      [networks, size, size, channels, 16], bias [networks, 16]
   activation  [networks, boards, height − size + 1, width − size + 1, 16], and error, the loss's derivative by it
   sums        [threads, networks, size · size · channels + 1, 16]: each thread's part of the gradients, of the bias last */

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

#define MAX_INPUTS 4096
#define INLINE static inline __attribute__((always_inline))

typedef struct {
    long height, width, channels, size, rows, columns; /* rows and columns of the output */
} shape;

/* Where a set bit is: its row, its column, its channel. */
typedef struct {
    int16_t y, x, channel;
} place;

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

/* Lists which inputs of a board are set, and returns how many are. */
INLINE int set_inputs(const uint8_t *board, shape s, place *set) {
    int count = 0, inputs = s.height * s.width * s.channels;
    for (int first = 0; first < inputs; first += 64) {
        uint64_t bits = as_bits(board + first, inputs - first < 64 ? inputs - first : 64);
        for (; bits; bits &= bits - 1) {
            int input = first + __builtin_ctzll(bits), cell = input / (int)s.channels;
            set[count++] = (place){cell / (int)s.width, cell % (int)s.width, input % (int)s.channels};
        }
    }
    return count;
}

/* What is not a number counts as positive, as it does in PyTorch: it must not go unnoticed. */
INLINE floats where_positive(floats condition, floats value) {
    return (floats)((choices)value & ~(condition <= 0));
}

/* For each filter weight that a set bit meets: its output, and the weight. */
#define FOR_EACH_MEETING(p, s, output, input)                                                   \
    for (long ky = p.y < s.rows ? 0 : p.y - s.rows + 1; ky < s.size && ky <= p.y; ky++)         \
        for (long kx = p.x < s.columns ? 0 : p.x - s.columns + 1, output, input;                \
             kx < s.size && kx <= p.x &&                                                        \
             (output = (p.y - ky) * s.columns + p.x - kx, input = (ky * s.size + kx) * s.channels + p.channel, 1); \
             kx++)

/* activation = boards ∗ weight + bias, or the positive part of it */
void forward(const uint8_t *boards, long n_boards, long height, long width, long channels, long size, long networks,
             const floats *weight, const floats *bias, floats *activation, long rectify, long threads) {
    shape s = {height, width, channels, size, height - size + 1, width - size + 1};
    long inputs = size * size * channels, outputs = s.rows * s.columns;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long board = 0; board < n_boards; board++) {
        place set[MAX_INPUTS];
        int count = set_inputs(boards + board * height * width * channels, s, set);
        for (long n = 0; n < networks; n++) {
            floats *out = activation + (n * n_boards + board) * outputs * PARTS;
            const floats *w = weight + n * inputs * PARTS;
            for (long i = 0; i < outputs * PARTS; i++) out[i] = bias[n * PARTS + i % PARTS];
            for (int i = 0; i < count; i++) {
                place p = set[i];
                FOR_EACH_MEETING(p, s, output, input)
                    for (int part = 0; part < PARTS; part++) out[output * PARTS + part] += w[input * PARTS + part];
            }
            if (rectify)
                for (long i = 0; i < outputs * PARTS; i++) out[i] = where_positive(out[i], out[i]);
        }
    }
}

/* sums = boardsᵀ ∗ e and Σ e, where e is the error, or what of it an activation lets through; which replaces it */
void backward(const uint8_t *boards, long n_boards, long height, long width, long channels, long size, long networks,
              const floats *activation, floats *error, floats *sums, long rectify, long threads) {
    shape s = {height, width, channels, size, height - size + 1, width - size + 1};
    long inputs = size * size * channels, outputs = s.rows * s.columns, parts = (inputs + 1) * PARTS;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long thread = 0; thread < threads; thread++) {
        floats *own = sums + thread * networks * parts;
        memset(own, 0, sizeof(floats) * networks * parts);
        for (long board = n_boards * thread / threads; board < n_boards * (thread + 1) / threads; board++) {
            place set[MAX_INPUTS];
            int count = set_inputs(boards + board * height * width * channels, s, set);
            for (long n = 0; n < networks; n++) {
                floats *e = error + (n * n_boards + board) * outputs * PARTS, *into = own + n * parts;
                const floats *a = activation + (n * n_boards + board) * outputs * PARTS;
                for (long i = 0; i < outputs * PARTS; i++) {
                    if (rectify) e[i] = where_positive(a[i], e[i]);
                    into[inputs * PARTS + i % PARTS] += e[i];
                }
                for (int i = 0; i < count; i++) {
                    place p = set[i];
                    FOR_EACH_MEETING(p, s, output, input)
                        for (int part = 0; part < PARTS; part++)
                            into[input * PARTS + part] += e[output * PARTS + part];
                }
            }
        }
    }
}

/* Whether any bit of a patch is set: [boards, outputs] */
void reached(const uint8_t *boards, long n_boards, long height, long width, long channels, long size, uint8_t *found,
             long threads) {
    shape s = {height, width, channels, size, height - size + 1, width - size + 1};
    long outputs = s.rows * s.columns;
    memset(found, 0, n_boards * outputs);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long board = 0; board < n_boards; board++) {
        place set[MAX_INPUTS];
        int count = set_inputs(boards + board * height * width * channels, s, set);
        for (int i = 0; i < count; i++) {
            place p = set[i];
            FOR_EACH_MEETING(p, s, output, input) found[board * outputs + output] = 1;
        }
    }
}
