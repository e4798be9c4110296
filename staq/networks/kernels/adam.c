/* A step of Adam or RAdam on all weights of an optimiser, whose gradients are clipped together: PyTorch has a kernel for
   Adam alone, and every small call between two large products is slow (see ``gradients.py``).

   weights, gradients, means, squares  n tensors each, of the given sizes
   longest    norm to which gradients are clipped, if they are longer
   rate       learning rate, over 1 − β1^t
   root       √(1 − β2^t), or 0 for a step along the mean that does not divide by the root of the squares */

#include <math.h>
#include "vectors.h"

static float norm_of(long n, float **tensors, const long *sizes, long threads) {
    double total = 0;
    for (long k = 0; k < n; k++) {
        const float *x = tensors[k];
        double part = 0;
#pragma omp parallel for reduction(+ : part) num_threads(threads) if (sizes[k] > 8192)
        for (long block = 0; block < sizes[k] / 1024; block++) {
            floats total = {0};
            for (long i = 0; i < 1024; i += LANES) {
                floats v = *(const floats *)(x + block * 1024 + i);
                total += v * v;
            }
            part += sum(total);
        }
        for (long i = sizes[k] / 1024 * 1024; i < sizes[k]; i++) part += x[i] * x[i];
        total += part;
    }
    return sqrt(total);
}

void step(long n, float **weights, float **gradients, float **means, float **squares, const long *sizes, float longest,
          float rate, float beta1, float beta2, float root, float epsilon, long threads) {
    float share = 1.0f;
    float inverse = root == 0 ? 0.0f : 1.0f / root, least = root == 0 ? 1.0f : epsilon; /* a root of 0 divides by 1 */
    if (longest < INFINITY) {
        float norm = norm_of(n, gradients, sizes, threads);
        share = longest / (norm + 1e-6f) < 1 ? longest / (norm + 1e-6f) : 1.0f;
    }
    for (long k = 0; k < n; k++) {
        float *restrict w = weights[k], *restrict m = means[k], *restrict v = squares[k];
        const float *restrict g = gradients[k];
#pragma omp parallel for simd schedule(static) num_threads(threads) if (sizes[k] > 8192)
        for (long i = 0; i < sizes[k]; i++) {
            float gradient = share * g[i];
            m[i] += (1 - beta1) * (gradient - m[i]);
            v[i] = beta2 * v[i] + (1 - beta2) * gradient * gradient;
            w[i] -= rate * m[i] / (sqrtf(v[i]) * inverse + least);
        }
    }
}
