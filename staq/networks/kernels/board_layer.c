/* The way back through the layer above a convolution over boards, of which much is empty. Where a patch is empty, a
   filter's activation is the same on every board, so that at each place all boards that are empty there count as one:
   about half of two products is never computed.

   x         [networks, boards, places, 16], activations of the convolution, and error, the loss's derivative by them
   reached   [boards, places], whether any bit of the patch is set
   weight    [networks, places, 16, outputs], with a multiple of 64 outputs, and gradient, of the same shape
   above     [networks, boards, outputs], the loss's derivative by the layer's sums */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif
#define FILTERS 16
#define BLOCK (4 * LANES)
#define INLINE static inline __attribute__((always_inline))

typedef float floats __attribute__((vector_size(4 * LANES), aligned(4)));

/* Lists the boards that are reached at a place, and behind them those that are not, last first; returns how many are. */
INLINE long reached_boards(const uint8_t *reached, long n_boards, long places, long place, int *boards) {
    long count = 0, empty = n_boards;
    for (long board = 0; board < n_boards; board++) { /* no branches, which nobody could predict */
        int is = reached[board * places + place];
        boards[is ? count : empty - 1] = board;
        count += is;
        empty -= !is;
    }
    return count;
}

/* gradient = xᵀ · above for 4 inputs and a block of columns, over some rows. */
INLINE void outer_products(long count, const float *const *x, const float *const *above, long column, float *gradient,
                           long outputs) {
    floats sums[4][4] = {{{0}}};
    for (int r = 0; r < count; r++)
        for (int v = 0; v < 4; v++) {
            floats e = *(const floats *)(above[r] + column + v * LANES);
            for (int i = 0; i < 4; i++) sums[i][v] += x[r][i] * e;
        }
    for (int i = 0; i < 4; i++)
        for (int v = 0; v < 4; v++) *(floats *)(gradient + i * outputs + v * LANES) = sums[i][v];
}

/* error = above · weightᵀ for some rows, from the weights as columns of 16. */
INLINE void pull_back(int rows, const float *const *above, const float *columns, long outputs, float *const *error) {
    for (int part = 0; part < FILTERS / LANES; part++) {
        floats sums[8] = {{0}};
        for (long j = 0; j < outputs; j++) {
            floats w = *(const floats *)(columns + j * FILTERS + part * LANES);
            for (int r = 0; r < rows; r++) sums[r] += above[r][j] * w;
        }
        for (int r = 0; r < rows; r++) *(floats *)(error[r] + part * LANES) = sums[r];
    }
}

/* Fills the gradient of the weights, and the error of the activations: of boards that are empty at a place one has
   the sum of all, and the others have none, which is all the same to what lies below. */
void backward(const float *x, const uint8_t *reached, long networks, long n_boards, long places, long outputs,
              const float *weight, const float *above, float *gradient, float *error, long threads) {
    memset(error, 0, sizeof(float) * networks * n_boards * places * FILTERS);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long job = 0; job < networks * places; job++) {
        long n = job / places, place = job % places, first = n * n_boards;
        int *boards = malloc(sizeof(int) * n_boards);
        const float **rows = malloc(sizeof(float *) * (n_boards + 1)), **errors = malloc(sizeof(float *) * (n_boards + 1));
        float **into = malloc(sizeof(float *) * (n_boards + 1)), *columns = malloc(sizeof(float) * outputs * (FILTERS + 1));
        float *shared = columns + outputs * FILTERS;
        const float *w = weight + job * FILTERS * outputs;
        long count = reached_boards(reached, n_boards, places, place, boards), all = count + (count < n_boards);
        memset(shared, 0, sizeof(float) * outputs);
        for (long i = count; i < n_boards; i++)
            for (long j = 0; j < outputs; j += LANES)
                *(floats *)(shared + j) += *(const floats *)(above + (first + boards[i]) * outputs + j);
        for (long r = 0; r < all; r++) {
            rows[r] = x + ((first + boards[r]) * places + place) * FILTERS;
            into[r] = error + ((first + boards[r]) * places + place) * FILTERS;
            errors[r] = r < count ? above + (first + boards[r]) * outputs : shared;
        }
        for (int i = 0; i < FILTERS; i += 4) {
            for (int r = 0; r < all; r++) rows[r] += i ? 4 : 0;
            for (long column = 0; column < outputs; column += BLOCK)
                outer_products(all, rows, errors, column, gradient + (job * FILTERS + i) * outputs + column, outputs);
        }
        for (int i = 0; i < FILTERS; i++)
            for (long j = 0; j < outputs; j++) columns[j * FILTERS + i] = w[i * outputs + j];
        long r = 0;
        for (; r + 8 <= all; r += 8) pull_back(8, errors + r, columns, outputs, into + r);
        for (; r < all; r++) pull_back(1, errors + r, columns, outputs, into + r);
        free(boards), free(rows), free(errors), free(into), free(columns);
    }
}
