/* Layer normalisation and rectification of several networks' layers, in place:
   x ← max(0, gain · (x − mean) / deviation + shift), a row at a time, while it is in a CPU's nearest cache.

   x           [networks, rows, width], with a multiple of 16 columns; after it the activation, or its error
   gain, shift [networks, width]
   normalised  [networks, rows, width], (x − mean) / deviation; and precision [networks, rows], 1 / deviation
   sums        [threads, networks, 2, width]: each thread's part of the gradients of gain and shift */

#include <math.h>
#include <string.h>
#include "vectors.h"

INLINE void forward_row(floats *x, const floats *gain, const floats *shift, floats *normalised, float *precision,
                        int parts, float epsilon) {
    float size = parts * LANES;
    floats total = x[0];
    for (int i = 1; i < parts; i++) total += x[i];
    float mean = sum(total) / size;
    floats squares = (x[0] - mean) * (x[0] - mean);
    for (int i = 1; i < parts; i++) squares += (x[i] - mean) * (x[i] - mean);
    float scale = 1.0f / sqrtf(sum(squares) / size + epsilon);
    if (precision) *precision = scale;
    for (int i = 0; i < parts; i++) {
        floats unit = (x[i] - mean) * scale, y = gain[i] * unit + shift[i];
        if (normalised) normalised[i] = unit;
        x[i] = where_positive(y, y);
    }
}

/* normalised and precision may be missing where nobody goes back. */
void forward(float *x, const float *gain, const float *shift, float *normalised, float *precision, long networks,
             long rows, long width, float epsilon, long threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long row = 0; row < networks * rows; row++) {
        const floats *own_gain = (const floats *)(gain + row / rows * width);
        const floats *own_shift = (const floats *)(shift + row / rows * width);
        floats *own = (floats *)(x + row * width);
        floats *unit = normalised ? (floats *)(normalised + row * width) : 0;
        float *scale = precision ? precision + row : 0;
        if (width == 16)
            forward_row(own, own_gain, own_shift, unit, scale, 16 / LANES, epsilon);
        else
            forward_row(own, own_gain, own_shift, unit, scale, width / LANES, epsilon);
    }
}

INLINE void backward_row(floats *error, const floats *activation, const floats *normalised, float precision,
                         const floats *gain, floats *gain_sum, floats *shift_sum, int parts) {
    float size = parts * LANES;
    floats total = {0}, along = {0};
    for (int i = 0; i < parts; i++) {
        floats passed = where_positive(activation[i], error[i]), through = passed * gain[i];
        gain_sum[i] += passed * normalised[i];
        shift_sum[i] += passed;
        total += through;
        along += through * normalised[i];
        error[i] = through;
    }
    float mean = sum(total) / size, slope = sum(along) / size;
    for (int i = 0; i < parts; i++) error[i] = precision * (error[i] - mean - normalised[i] * slope);
}

/* Makes the error by the activation that by x before it was normalised, and fills the sums. */
void backward(float *error, const float *activation, const float *normalised, const float *precision, const float *gain,
              float *sums, long networks, long rows, long width, long threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int thread = 0; thread < threads; thread++) {
        memset(sums + (long)thread * networks * 2 * width, 0, sizeof(float) * networks * 2 * width);
        long total = networks * rows;
        for (long row = total * thread / threads; row < total * (thread + 1) / threads; row++) {
            float *own = sums + ((long)thread * networks + row / rows) * 2 * width;
            floats *e = (floats *)(error + row * width), *gains = (floats *)own, *shifts = (floats *)(own + width);
            const floats *a = (const floats *)(activation + row * width);
            const floats *unit = (const floats *)(normalised + row * width);
            const floats *g = (const floats *)(gain + row / rows * width);
            if (width == 16)
                backward_row(e, a, unit, precision[row], g, gains, shifts, 16 / LANES);
            else
                backward_row(e, a, unit, precision[row], g, gains, shifts, width / LANES);
        }
    }
}
