/* A convolution over boards of bits and the layer above it. Of the patches that a batch of boards has at a place few
   differ, as a tenth to a half of them do in MinAtar's games, and what is alike is computed once: its filters, its
   norm, its part of the layer's sums; and on the way back, with the errors of all who share it added up. There are
   16 filters: one vector of AVX-512, two of less. Stride 1, no padding.

   boards      [boards, height, width, channels], a byte of 0 or 1 per input
   patches     [places, boards] of which the first counts[place] differ, each as the bits of its inputs
   shared      [places, boards], which of them a board has there
   filters     [networks, inputs, 16], bias [networks, 16]; gain, shift [networks, 16] of a layer norm, or none
   x           [networks, places, boards, 16], the convolution's activation by distinct patch; and normalised, of the
               same shape, and precision [networks, places, boards], for the way back through the norm
   weight      [networks, places, 16, outputs], with a multiple of 64 outputs
   y           [networks, boards, outputs], the layer's sums, and above, the loss's derivative by them
   sums        [threads, networks, inputs + 3, 16]: each thread's part of the gradients of filters, bias, gain, shift */

#include <math.h>
#include <omp.h>
#include <string.h>
#ifdef __AVX512BW__
#include <immintrin.h>
#endif
#include "vectors.h"

#define ROWS (3 * LANES / 8) /* sums of ROWS × 4 vectors stay in registers, of which AVX-512 has twice as many */
#define FILTERS 16
#define PARTS (FILTERS / LANES)
#define BLOCK (4 * LANES)

typedef unsigned __int128 bits;


/* Up to 64 bytes of 0 or 1 as the bits of a number. */
INLINE uint64_t as_word(const uint8_t *bytes, long length) {
#ifdef __AVX512BW__
    __m512i values = _mm512_maskz_loadu_epi8(length < 64 ? (1ull << length) - 1 : ~0ull, bytes);
    return _mm512_test_epi8_mask(values, values);
#else
    uint64_t word = 0;
    for (long i = 0; i < length; i++) word |= (uint64_t)bytes[i] << i;
    return word;
#endif
}

/* The bits of a row of a board, of which there are at most 128. */
INLINE bits row_bits(const uint8_t *row, long length) {
    bits low = as_word(row, length < 64 ? length : 64);
    return length > 64 ? low | (bits)as_word(row + 64, length - 64) << 64 : low;
}

/* Finds the distinct patches of a place, and returns how many there are. slot holds one more than where a patch is, or
   0. Most games' boards are narrow: no row and no patch has more than 64 bits. */
INLINE long find_at(const bits *rows, long n_boards, long height, long shift, long size, long run, int narrow,
                    bits *found, int32_t *shared, int32_t *slot, long slots) {
    bits mask = run < 128 ? ((bits)1 << run) - 1 : ~(bits)0;
    long count = 0;
    memset(slot, 0, sizeof(int32_t) * slots);
    for (long board = 0; board < n_boards; board++) {
        bits patch = 0;
        if (narrow) {
            uint64_t word = 0;
            for (long k = 0; k < size; k++) word |= ((uint64_t)rows[board * height + k] >> shift & (uint64_t)mask) << k * run;
            patch = word;
        } else {
            for (long k = 0; k < size; k++) patch |= (rows[board * height + k] >> shift & mask) << k * run;
        }
        uint64_t folded = (uint64_t)patch + 31 * (uint64_t)(patch >> 64);
        long at = folded * 0x9e3779b97f4a7c15ull >> 40 & (slots - 1);
        while (slot[at] && found[slot[at] - 1] != patch) at = (at + 1) & (slots - 1);
        if (!slot[at]) {
            found[count++] = patch;
            slot[at] = count;
        }
        shared[board] = slot[at] - 1;
    }
    return count;
}

/* The same of every place. rows [boards, height] and table [threads, slots], with slots a power of 2 that is at least
   twice the number of boards, are room to work in. */
void find(const uint8_t *boards, long n_boards, long height, long width, long channels, long size, bits *patches,
          int32_t *counts, int32_t *shared, bits *rows, int32_t *table, long slots, long threads) {
    long columns = width - size + 1, places = (height - size + 1) * columns, run = size * channels;
    int narrow = size * run <= 64 && width * channels <= 64;
    for (long i = 0; i < n_boards * height; i++) rows[i] = row_bits(boards + i * width * channels, width * channels);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long place = 0; place < places; place++) {
        const bits *from = rows + place / columns;
        long shift = place % columns * channels, first = place * n_boards;
        int32_t *slot = table + omp_get_thread_num() * slots;
        counts[place] =
            narrow ? find_at(from, n_boards, height, shift, size, run, 1, patches + first, shared + first, slot, slots)
                   : find_at(from, n_boards, height, shift, size, run, 0, patches + first, shared + first, slot, slots);
    }
}

/* A square of as many rows as a vector has lanes becomes its transpose. */
INLINE void transpose(floats *square) {
#pragma GCC unroll 4
    for (int step = 1; step < LANES; step *= 2) {
        choices first, second;
        for (int i = 0; i < LANES; i++) {
            first[i] = i & step ? LANES + i - step : i;
            second[i] = i & step ? LANES + i : i + step;
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            if (!(i & step)) {
                floats a = square[i], b = square[i + step];
                square[i] = __builtin_shuffle(a, b, first);
                square[i + step] = __builtin_shuffle(a, b, second);
            }
    }
}

/* Of 16 numbers. */
INLINE float mean_of(const floats *vectors) {
    floats total = vectors[0];
    for (int part = 1; part < PARTS; part++) total += vectors[part];
    return sum(total) / FILTERS;
}

/* Adds a row of 16 for each bit that is set. */
INLINE void add_rows(bits patch, const floats *rows, floats *total) {
    for (int half = 0; half < 2; half++)
        for (uint64_t word = patch >> 64 * half; word; word &= word - 1)
            for (int part = 0; part < PARTS; part++)
                total[part] += rows[(64 * half + __builtin_ctzll(word)) * PARTS + part];
}

/* The activation of the 16 filters for one patch. */
INLINE void activate(bits patch, const floats *filters, const floats *bias, const floats *gain, const floats *shift,
                     float epsilon, floats *x, floats *normalised, float *precision) {
    floats sum[PARTS];
    for (int part = 0; part < PARTS; part++) sum[part] = bias[part];
    add_rows(patch, filters, sum);
    if (gain) {
        floats squares[PARTS];
        float mean = mean_of(sum);
        for (int part = 0; part < PARTS; part++) squares[part] = (sum[part] - mean) * (sum[part] - mean);
        float scale = 1.0f / sqrtf(mean_of(squares) + epsilon);
        if (precision) *precision = scale;
        for (int part = 0; part < PARTS; part++) {
            floats unit = (sum[part] - mean) * scale;
            if (normalised) normalised[part] = unit;
            sum[part] = gain[part] * unit + shift[part];
        }
    }
    for (int part = 0; part < PARTS; part++) x[part] = where_positive(sum[part], sum[part]);
}

/* z = x · weight for some rows and a block of columns. */
INLINE void multiply(int rows, const float *x, const float *weight, long outputs, float *z) {
    floats sums[ROWS][4] = {{{0}}};
    for (int i = 0; i < FILTERS; i++)
        for (int v = 0; v < 4; v++) {
            floats w = *(const floats *)(weight + i * outputs + v * LANES);
            for (int r = 0; r < rows; r++) sums[r][v] += x[r * FILTERS + i] * w;
        }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 4; v++) *(floats *)(z + r * BLOCK + v * LANES) = sums[r][v];
}

/* y = x · weight + bias, of all networks. z [threads, places, boards, BLOCK] is room to work in, and so is x
   [threads, ...] unless it is to be kept. */
void forward(long n_boards, long places, long inputs, long outputs, const bits *patches, const int32_t *counts,
             const int32_t *shared, long networks, const float *filters, const float *filter_bias, const float *gain,
             const float *shift, float epsilon, float *x, float *kept, float *normalised, float *precision,
             const float *weight, const float *bias, float *y, float *z, long threads) {
    long blocks = outputs / BLOCK, all = places * n_boards;
#pragma omp parallel num_threads(threads)
    {
        long thread = omp_get_thread_num(), known = -1;
        float *own_z = z + thread * all * BLOCK, *own_x = 0;
#pragma omp for schedule(static)
        for (long job = 0; job < networks * blocks; job++) { /* blocks of one network mostly meet on one thread */
            long n = job / blocks, column = job % blocks * BLOCK;
            if (known != n) {
                int keeps = kept && column == 0;
                own_x = keeps ? kept + n * all * FILTERS : x + thread * all * FILTERS;
                for (long place = 0; place < places; place++)
                    for (long i = place * n_boards; i < place * n_boards + counts[place]; i++)
                        activate(patches[i], (const floats *)(filters + n * inputs * FILTERS),
                                 (const floats *)(filter_bias + n * FILTERS), gain ? (const floats *)(gain + n * FILTERS) : 0,
                                 (const floats *)(shift + n * FILTERS), epsilon, (floats *)(own_x + i * FILTERS),
                                 keeps && gain ? (floats *)(normalised + (n * all + i) * FILTERS) : 0,
                                 keeps && gain ? precision + n * all + i : 0);
                known = n;
            }
            for (long place = 0; place < places; place++) {
                const float *w = weight + (n * places + place) * FILTERS * outputs + column;
                const float *seen = own_x + place * n_boards * FILTERS;
                float *into = own_z + place * n_boards * BLOCK;
                long r = 0, count = counts[place];
                for (int i = 0; i < FILTERS; i++) /* of the place that comes next */
                    for (int v = 0; v < 4; v++) __builtin_prefetch(w + (FILTERS + i) * outputs + v * LANES);
                for (; r + ROWS <= count; r += ROWS) multiply(ROWS, seen + r * FILTERS, w, outputs, into + r * BLOCK);
                for (; r + ROWS / 2 <= count; r += ROWS / 2)
                    multiply(ROWS / 2, seen + r * FILTERS, w, outputs, into + r * BLOCK);
                for (; r < count; r++) multiply(1, seen + r * FILTERS, w, outputs, into + r * BLOCK);
            }
            for (long board = 0; board < n_boards; board++) {
                floats total[4];
                for (int v = 0; v < 4; v++) total[v] = *(const floats *)(bias + n * outputs + column + v * LANES);
                for (long place = 0; place < places; place++) {
                    const float *part = own_z + (place * n_boards + shared[place * n_boards + board]) * BLOCK;
                    for (int v = 0; v < 4; v++) total[v] += *(const floats *)(part + v * LANES);
                }
                for (int v = 0; v < 4; v++)
                    *(floats *)(y + (n * n_boards + board) * outputs + column + v * LANES) = total[v];
            }
        }
    }
}

/* gradient = xᵀ · error for 4 inputs and a block of columns, over some rows. */
INLINE void outer_products(long count, const float *x, const float *error, long outputs, float *gradient) {
    floats sums[4][4] = {{{0}}};
    for (long r = 0; r < count; r++)
        for (int v = 0; v < 4; v++) {
            floats e = *(const floats *)(error + r * outputs + v * LANES);
            for (int i = 0; i < 4; i++) sums[i][v] += x[r * FILTERS + i] * e;
        }
    for (int i = 0; i < 4; i++)
        for (int v = 0; v < 4; v++) *(floats *)(gradient + i * outputs + v * LANES) = sums[i][v];
}

/* weight [16, outputs] as its columns [outputs, 16]. */
INLINE void columns_of(const float *weight, long outputs, float *columns) {
    for (int part = 0; part < PARTS; part++)
        for (long j = 0; j < outputs; j += LANES) {
            floats square[LANES];
            for (int i = 0; i < LANES; i++) square[i] = *(const floats *)(weight + (part * LANES + i) * outputs + j);
            transpose(square);
            for (int i = 0; i < LANES; i++) *(floats *)(columns + (j + i) * FILTERS + part * LANES) = square[i];
        }
}

/* error · weightᵀ for some rows, from the weight's columns. */
INLINE void pull_back(int rows, const float *error, const float *columns, long outputs, floats (*found)[PARTS]) {
    for (int part = 0; part < PARTS; part++) {
        floats sums[8] = {{0}};
        for (long j = 0; j < outputs; j++) {
            floats w = *(const floats *)(columns + j * FILTERS + part * LANES);
            for (int r = 0; r < rows; r++) sums[r] += error[r * outputs + j] * w;
        }
        for (int r = 0; r < rows; r++) found[r][part] = sums[r];
    }
}

/* From the error by a patch's activation to its part of the gradients of filters, bias, gain and shift. */
INLINE void differentiate(bits patch, const floats *x, const floats *normalised, const float *precision,
                          const floats *gain, floats *error, floats *sums, long inputs) {
    for (int part = 0; part < PARTS; part++) error[part] = where_positive(x[part], error[part]);
    if (gain) {
        floats along[PARTS];
        for (int part = 0; part < PARTS; part++) {
            sums[(inputs + 1) * PARTS + part] += error[part] * normalised[part];
            sums[(inputs + 2) * PARTS + part] += error[part];
            error[part] *= gain[part];
            along[part] = error[part] * normalised[part];
        }
        float mean = mean_of(error), slope = mean_of(along);
        for (int part = 0; part < PARTS; part++)
            error[part] = *precision * (error[part] - mean - normalised[part] * slope);
    }
    for (int half = 0; half < 2; half++)
        for (uint64_t word = patch >> 64 * half; word; word &= word - 1)
            for (int part = 0; part < PARTS; part++)
                sums[(64 * half + __builtin_ctzll(word)) * PARTS + part] += error[part];
    for (int part = 0; part < PARTS; part++) sums[inputs * PARTS + part] += error[part];
}

/* Fills the gradient of the weights, and sums. errors [threads, boards + 24, outputs] is room to work in. */
void backward(long n_boards, long places, long inputs, long outputs, const bits *patches, const int32_t *counts,
              const int32_t *shared, long networks, const float *x, const float *normalised, const float *precision,
              const float *gain, const float *weight, const float *above, float *gradient, float *sums, float *errors,
              long threads) {
    long parts = (inputs + 3) * PARTS;
    memset(sums, 0, sizeof(floats) * threads * networks * parts); /* of threads that do not come, too */
#pragma omp parallel num_threads(threads)
    {
        long thread = omp_get_thread_num();
        floats *own = (floats *)sums + thread * networks * parts;
        float *error = errors + thread * (n_boards + 8 + FILTERS) * outputs, *columns = error + (n_boards + 8) * outputs;
        floats found[8][PARTS];
#pragma omp for schedule(static)
        for (long job = 0; job < networks * places; job++) {
            long n = job / places, place = job % places, first = job * n_boards, count = counts[place];
            memset(error, 0, sizeof(float) * count * outputs);
            for (long board = 0; board < n_boards; board++) {
                float *into = error + shared[place * n_boards + board] * outputs;
                for (long j = 0; j < outputs; j += LANES)
                    *(floats *)(into + j) += *(const floats *)(above + (n * n_boards + board) * outputs + j);
            }
            for (int i = 0; i < FILTERS; i += 4)
                for (long column = 0; column < outputs; column += BLOCK)
                    outer_products(count, x + first * FILTERS + i, error + column, outputs,
                                   gradient + (job * FILTERS + i) * outputs + column);
            columns_of(weight + job * FILTERS * outputs, outputs, columns);
            for (long r = 0; r < count; r++) {
                if (r % 8 == 0 && count - r > 4)
                    pull_back(8, error + r * outputs, columns, outputs, found);
                else if (r % 8 == 0)
                    pull_back(4, error + r * outputs, columns, outputs, found);
                differentiate(patches[place * n_boards + r], (const floats *)(x + (first + r) * FILTERS),
                              gain ? (const floats *)(normalised + (first + r) * FILTERS) : 0,
                              gain ? precision + first + r : 0, gain ? (const floats *)(gain + n * FILTERS) : 0,
                              found[r % 8], own + n * parts, inputs);
            }
        }
    }
}
