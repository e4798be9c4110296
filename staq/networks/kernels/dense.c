/* A layer of many networks for few observations: y = x · weight + bias, or its positive part. A library's matrix product
   first copies the weights into an order of its own, which pays when they meet many rows; here they meet some fifty,
   once per acting step.

   x       [networks, rows, inputs], or [1, rows, inputs] for all
   weight  [networks, inputs, outputs], bias [networks, outputs], with a multiple of 32 outputs
   y       [networks, rows, outputs] */

#include "vectors.h"

#define ROWS (5 * LANES / 8) /* sums of ROWS × 2 vectors stay in registers, of which AVX-512 has twice as many */
#define COLUMNS (2 * LANES)

INLINE void store(float *place, floats value, int rectify) {
    *(floats *)place = rectify ? where_positive(value, value) : value;
}

/* COLUMNS outputs for a few rows. Meanwhile the weights of the COLUMNS that come next are fetched. */
INLINE void block(const float *x, long inputs, const float *weight, long outputs, const float *bias, float *y, int rows,
                  int fetch, int rectify) {
    floats sums[ROWS][2];
    for (int row = 0; row < rows; row++) {
        sums[row][0] = *(const floats *)bias;
        sums[row][1] = *(const floats *)(bias + LANES);
    }
    for (long i = 0; i < inputs; i++, weight += outputs) {
        floats first = *(const floats *)weight, second = *(const floats *)(weight + LANES);
        if (fetch) {
            __builtin_prefetch(weight + COLUMNS);
            __builtin_prefetch(weight + COLUMNS + LANES);
        }
        for (int row = 0; row < rows; row++) {
            sums[row][0] += x[row * inputs + i] * first;
            sums[row][1] += x[row * inputs + i] * second;
        }
    }
    for (int row = 0; row < rows; row++) {
        store(y + row * outputs, sums[row][0], rectify);
        store(y + row * outputs + LANES, sums[row][1], rectify);
    }
}

void dense(const float *x, long shared, long networks, long rows, long inputs, long outputs, const float *weight,
           const float *bias, float *y, long rectify, long threads) {
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
    for (long n = 0; n < networks; n++)
        for (long column = 0; column < outputs; column += COLUMNS) {
            const float *seen = shared ? x : x + n * rows * inputs, *b = bias + n * outputs + column;
            const float *w = weight + n * inputs * outputs + column;
            float *out = y + n * rows * outputs + column;
            long row = 0;
            for (; row + ROWS <= rows; row += ROWS)
                block(seen + row * inputs, inputs, w, outputs, b, out + row * outputs, ROWS, row == 0, rectify);
            for (; row + ROWS / 2 <= rows; row += ROWS / 2)
                block(seen + row * inputs, inputs, w, outputs, b, out + row * outputs, ROWS / 2, 0, rectify);
            for (; row < rows; row++) block(seen + row * inputs, inputs, w, outputs, b, out + row * outputs, 1, 0, rectify);
        }
}
