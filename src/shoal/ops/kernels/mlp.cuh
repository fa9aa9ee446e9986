// What the kernels of `mlp.cu` (products in TF32) and `mlp_bf16.cu` share: sizes, operands, activations and biases.

#pragma once

#include <cstdint>

namespace {

constexpr int H = 64;
constexpr int WARPS = 4;
constexpr int THREADS = 32 * WARPS;

struct Tower {
  int in, h1, h2, out, weights, first_out;
  __device__ int last() const { return h2 ? h2 : h1; }
  __device__ int bias1() const { return weights + in * h1; }
  __device__ int kernel2() const { return bias1() + h1; }
  __device__ int bias2() const { return kernel2() + h1 * h2; }
  __device__ int kernel3() const { return bias2() + h2; }
  __device__ int bias3() const { return kernel3() + last() * out; }
};

// Inputs and weights of one tower in one group.
struct Operands {
  const float *x, *k1, *b1, *k2, *b2, *k3, *b3;
  __device__ void select(const Tower& tower, int rows, size_t group) {
    x += group * rows * tower.in;
    k1 += group * tower.in * tower.h1;
    b1 += group * tower.h1;
    k2 += group * tower.h1 * tower.h2;
    b2 += group * tower.h2;
    k3 += group * tower.last() * tower.out;
    b3 += group * tower.out;
  }
};

#define OPERANDS                                                                                            \
  const float *x0, const float *k10, const float *b10, const float *k20, const float *b20, const float *k30, \
      const float *b30, const float *x1, const float *k11, const float *b11, const float *k21,               \
      const float *b21, const float *k31, const float *b31, const int *sizes
#define SELECTED                                                     \
  blockIdx.y ? Operands{x1, k11, b11, k21, b21, k31, b31}            \
             : Operands { x0, k10, b10, k20, b20, k30, b30 }

__device__ Tower read_tower(const int* sizes, int which) {
  const int* at = sizes + 4 + 8 * which;
  return {at[0], at[1], at[2], at[3], at[4], at[5]};
}

__device__ __forceinline__ float fast_tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

enum { TANH, RELU, GELU, SILU };

// The activation of z, and its derivative.
template <int KIND>
__device__ __forceinline__ float activate(float z, float& slope) {
  if (KIND == TANH) {
    float y = fast_tanh(z);
    slope = 1.0f - y * y;
    return y;
  }
  if (KIND == RELU) {
    slope = z > 0.0f ? 1.0f : 0.0f;
    return z > 0.0f ? z : z * 0.0f;  // NaN stays NaN
  }
  if (KIND == SILU) {
    float s = 0.5f + 0.5f * fast_tanh(0.5f * z);
    slope = s * (1.0f + z * (1.0f - s));
    return z * s;
  }
  float inner = 0.7978845608f * z * (1.0f + 0.044715f * z * z);
  float y = fast_tanh(inner);
  slope = 0.5f * (1.0f + y) + 0.5f * z * (1.0f - y * y) * 0.7978845608f * (1.0f + 0.134145f * z * z);
  return 0.5f * z * (1.0f + y);
}

__device__ void load_bias(float* to, const float* from, int size, int padded) {
  for (int i = threadIdx.x; i < padded; i += THREADS) to[i] = i < size ? from[i] : 0.0f;
}

template <int M, int N>
__device__ __forceinline__ void set_bias(float (&c)[M][N][4], const float* bias) {
  int t = threadIdx.x & 3;
#pragma unroll
  for (int n = 0; n < N; n++) {
    float2 b = *reinterpret_cast<const float2*>(bias + 8 * n + 2 * t);
#pragma unroll
    for (int m = 0; m < M; m++) {
      c[m][n][0] = c[m][n][2] = b.x;
      c[m][n][1] = c[m][n][3] = b.y;
    }
  }
}

}  // namespace
