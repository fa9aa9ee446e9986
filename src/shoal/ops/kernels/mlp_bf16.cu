// The kernels of `mlp.cu` with products in bfloat16 and float32 sums: for networks that compute in bfloat16. Operands,
// which are float32 here too, results, `sizes` and grids are the same.
//
// Inputs, weights, hidden layers and gradients are rounded to bfloat16 where they become operands of a product; what is
// before an activation, the activation itself and all sums are float32. The weights of the linear head are two numbers
// in bfloat16 each forward, the second of which is what rounding the first left: heads compute in float32 in every
// network, and 16 bits are more than the 11 of TF32.
//
// The accumulators of two neighbouring tiles of a product, packed two by two, are the left operand of the next one.
// Weights and rows lie in shared memory row by row as bfloat16, each once: `ldmatrix` turns them into either operand,
// transposed or not.
//
// Compile-time sizes: IN, OUT, the form and BLOCKS, the blocks that a multiprocessor should hold; MT, the tiles of 16
// rows that a warp works on at once, in both directions.

#include <cstring>

#include "mlp.cuh"

namespace {

constexpr int TILE = 16 * MT * WARPS;  // rows
constexpr int STEPS = H / 16;  // of 16 along k
constexpr int NT = H / 8 / MT;  // tiles of 8 columns at once

// Rows in shared memory: strides are 8 more than a multiple of 16, so that no two rows of eight meet in a bank.
using Number = uint16_t;
constexpr int SH = H + 8, SX = IN + 8, SO = OUT + 8;

constexpr uint32_t ONES = 0x3f803f80, MINUS_ZEROS = 0x80008000;

__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

__device__ __forceinline__ uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(MINUS_ZEROS));
  return product;
}

// c += a b for a 16x8 tile. Lane (g, t): a = [g, k], [g + 8, k], [g, k + 8], [g + 8, k + 8], b = [k, g], [k + 8, g] for
// k = 2t and 2t + 1, c = [g, 2t], [g, 2t + 1], [g + 8, 2t], [g + 8, 2t + 1].
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four matrices of 8x8 that together are 16x16, `at` being the lane's row of one.
template <bool TRANSPOSED>
__device__ __forceinline__ void load_four(uint32_t (&to)[4], uint32_t at) {
  if (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
}

// The lane's row for `load_four` where the second matrix is below the first and the third beside it...
template <int STRIDE>
__device__ __forceinline__ uint32_t down_first(const Number* tile) {
  int lane = threadIdx.x & 31;
  return __cvta_generic_to_shared(tile + (lane & 15) * STRIDE + 8 * (lane >> 4));
}

// ... and where the second is beside the first and the third below it.
template <int STRIDE>
__device__ __forceinline__ uint32_t across_first(const Number* tile) {
  int lane = threadIdx.x & 31;
  return __cvta_generic_to_shared(tile + ((lane & 7) + 8 * (lane >> 4)) * STRIDE + (lane & 8));
}

// Copies a kernel [rows, columns], or what rounding it leaves, to shared memory. Missing numbers are 0.
template <int ROWS, int COLUMNS, bool REST = false>
__device__ void load_kernel(Number* to, const float* from, int rows, int columns) {
#pragma unroll 4
  for (int i = threadIdx.x; i < ROWS * COLUMNS / 2; i += THREADS) {
    int r = i / (COLUMNS / 2), c = 2 * (i % (COLUMNS / 2));
    float low = r < rows && c < columns ? from[r * columns + c] : 0.0f;
    float high = r < rows && c + 1 < columns ? from[r * columns + c + 1] : 0.0f;
    uint32_t both = pack(low, high);
    if (REST) both = pack(low - __uint_as_float(both << 16), high - __uint_as_float(both & 0xffff0000));
    *reinterpret_cast<uint32_t*>(to + r * (COLUMNS + 8) + c) = both;
  }
}

// A warp's rows of [rows, columns] on their way to shared memory: read ahead, while the rows before are worked on.
template <int PADDED>
struct Rows {
  static constexpr int WIDE = PADDED / 2 < 32 ? PADDED / 2 : 32, AT_ONCE = 32 / WIDE, COUNT = 16 * MT / AT_ONCE;
  float2 value[COUNT];

  // Reads the rows from `first` on; those beyond the last, and columns beyond the last, are 0.
  __device__ __forceinline__ void read(const float* from, int from_stride, int first, int rows, int columns) {
    int lane = threadIdx.x & 31, column = 2 * (lane % WIDE), offset = lane / WIDE, left = rows - first - offset;
    const float* at = from + (size_t)(first + offset) * from_stride + column;
    bool low = column < columns, high = column + 1 < columns;
    bool pairs = ((from_stride | columns) & 1) == 0 && ((size_t)from & 7) == 0;  // they lie at multiples of 8 bytes
    if (pairs) {
#pragma unroll
      for (int i = 0; i < COUNT; i++)
        value[i] = low && i * AT_ONCE < left ? __ldg(reinterpret_cast<const float2*>(at + i * AT_ONCE * from_stride))
                                             : make_float2(0.0f, 0.0f);
    } else {
#pragma unroll
      for (int i = 0; i < COUNT; i++) {
        const float* row = at + i * AT_ONCE * from_stride;
        value[i].x = low && i * AT_ONCE < left ? __ldg(row) : 0.0f;
        value[i].y = high && i * AT_ONCE < left ? __ldg(row + 1) : 0.0f;
      }
    }
  }

  // Writes them as those of a tile.
  __device__ __forceinline__ void write(Number* to) const {
    int lane = threadIdx.x & 31, column = 2 * (lane % WIDE), offset = lane / WIDE;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      *reinterpret_cast<uint32_t*>(to + (offset + i * AT_ONCE) * (PADDED + 8) + column) = pack(value[i].x, value[i].y);
  }
};

// A warp's rows as left operands, from shared memory.
template <int STRIDE, int K>
__device__ __forceinline__ void load_left(uint32_t (&a)[MT][K][4], const Number* rows) {
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int k = 0; k < K; k++) load_four<false>(a[m][k], down_first<STRIDE>(rows) + 2 * (16 * m * STRIDE + 16 * k));
}

// A warp's rows, as left operands, to shared memory.
__device__ __forceinline__ void store_rows(Number* to, const uint32_t (&a)[MT][STEPS][4]) {
  int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int k = 0; k < STEPS; k++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        *reinterpret_cast<uint32_t*>(to + (16 * m + g + 8 * (i & 1)) * SH + 16 * k + 8 * (i >> 1) + 2 * t) = a[m][k][i];
}

template <int N>
__device__ __forceinline__ void clear(float (&c)[MT][N][4]) {
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int n = 0; n < N; n++) c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0.0f;
}

// c += a w for the columns from `column` on, of which w has [K, columns], or [columns, K] if it is TRANSPOSED; `used`
// rows of w are not 0.
template <int STRIDE, bool TRANSPOSED, int K, int N>
__device__ __forceinline__ void multiply(float (&c)[MT][N][4], const uint32_t (&a)[MT][K][4], const Number* w,
                                         int column, int used = 16 * K) {
  uint32_t at = TRANSPOSED ? across_first<STRIDE>(w) : down_first<STRIDE>(w);
#pragma unroll
  for (int k = 0; k < K; k++) {
    if (k >= 2 && 16 * k >= used) break;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      uint32_t b[4];
      int other = column + 8 * n;
      load_four<!TRANSPOSED>(b, at + 2 * (TRANSPOSED ? other * STRIDE + 16 * k : 16 * k * STRIDE + other));
#pragma unroll
      for (int m = 0; m < MT; m++) {
        mma(c[m][n], a[m][k], b[0], b[1]);
        mma(c[m][n + 1], a[m][k], b[2], b[3]);
      }
    }
  }
}

// The activations of z as left operands, and their derivatives; z is the part of a layer that begins at tile `first`.
template <int KIND>
__device__ __forceinline__ void activate_each(const float (&z)[MT][NT][4], uint32_t (&h)[MT][STEPS][4],
                                              uint32_t (&slope)[MT][STEPS][4], int first) {
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float slopes[2], low = activate<KIND>(z[m][n][2 * i], slopes[0]);
        float high = activate<KIND>(z[m][n][2 * i + 1], slopes[1]);
        h[m][(first + n) / 2][2 * (n % 2) + i] = pack(low, high);
        slope[m][(first + n) / 2][2 * (n % 2) + i] = pack(slopes[0], slopes[1]);
      }
}

// A hidden layer h, and the derivatives of its activation.
template <int K>
__device__ __forceinline__ void compute_layer(uint32_t (&h)[MT][STEPS][4], uint32_t (&slope)[MT][STEPS][4],
                                              const uint32_t (&a)[MT][K][4], const Number* w, const float* bias,
                                              int kind, int used = 16 * K) {
#pragma unroll
  for (int first = 0; first < H / 8; first += NT) {
    float z[MT][NT][4];
    set_bias(z, bias + 8 * first);
    multiply<SH, false>(z, a, w, 8 * first, used);
    if (kind == TANH) activate_each<TANH>(z, h, slope, first);
    else if (kind == RELU) activate_each<RELU>(z, h, slope, first);
    else if (kind == GELU) activate_each<GELU>(z, h, slope, first);
    else activate_each<SILU>(z, h, slope, first);
  }
}

// The gradient d of what is before an activation, given the gradient a of what comes out of the next layer, whose
// weights are w.
template <int STRIDE, int K>
__device__ __forceinline__ void go_back(uint32_t (&d)[MT][STEPS][4], const uint32_t (&slope)[MT][STEPS][4],
                                        const uint32_t (&a)[MT][K][4], const Number* w) {
#pragma unroll
  for (int first = 0; first < H / 8; first += NT) {
    float z[MT][NT][4];
    clear(z);
    multiply<STRIDE, true>(z, a, w, 8 * first);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
      for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          int step = (first + n) / 2, at = 2 * (n % 2) + i;
          d[m][step][at] = multiply_pairs(pack(z[m][n][2 * i], z[m][n][2 * i + 1]), slope[m][step][at]);
        }
  }
}

// c += a^T b over the rows of a tile, for the columns [row, row + 16 M) of a and [column, column + 8 N) of b; `total`
// gets b's column sums if they are `summed`: products with ones, of two tiles by turns in the upper and the lower half.
template <int A, int B, int M, int N>
__device__ __forceinline__ void accumulate(float (&c)[M][N][4], float (&total)[N / 2][4], const Number* a, int row,
                                           const Number* b, int column, bool summed = true) {
  constexpr uint32_t UPPER[4] = {ONES, 0, ONES, 0}, LOWER[4] = {0, ONES, 0, ONES};
#pragma unroll 4
  for (int k = 0; k < TILE; k += 16) {
    uint32_t left[M][4], right[4];
#pragma unroll
    for (int m = 0; m < M; m++) load_four<true>(left[m], across_first<A>(a) + 2 * (k * A + row + 16 * m));
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      load_four<true>(right, down_first<B>(b) + 2 * (k * B + column + 8 * n));
#pragma unroll
      for (int m = 0; m < M; m++) {
        mma(c[m][n], left[m], right[0], right[1]);
        mma(c[m][n + 1], left[m], right[2], right[3]);
      }
      if (summed) {
        mma(total[n / 2], UPPER, right[0], right[1]);
        mma(total[n / 2], LOWER, right[2], right[3]);
      }
    }
  }
}

// The gradient of a kernel [rows, columns], of which c is the part that begins at (row, column); and of its bias.
template <int M, int N>
__device__ __forceinline__ void store_gradient(float* kernel, float* bias, const float (&c)[M][N][4],
                                               const float (&total)[N / 2][4], int row, int column, int rows,
                                               int columns) {
  int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int o = column + 8 * n + 2 * t + (i & 1);
#pragma unroll
      for (int m = 0; m < M; m++) {
        int r = row + 16 * m + g + 8 * (i >> 1);
        if (r < rows && o < columns) kernel[r * columns + o] = c[m][n][i];
      }
      if (row == 0 && g == 0 && i < 2 && o < columns) bias[o] = total[n / 2][2 * (n % 2) + i];
    }
}

}  // namespace

#ifdef FORWARD
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(OPERANDS, float* out) {
  extern __shared__ __align__(16) Number shared[];
  Number *w1 = shared, *w2 = w1 + IN * SH, *w3 = w2 + H * SH, *rest3 = w3 + H * SO;
  int warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
  Number* xs = rest3 + H * SO + warp * 16 * MT * SX;
  float *b1 = reinterpret_cast<float*>(rest3 + H * SO + TILE * SX), *b2 = b1 + H, *b3 = b2 + H;
  Tower tower = read_tower(sizes, blockIdx.y);
  int rows = sizes[0], out_stride = sizes[1], kind = sizes[3];
  Operands from = SELECTED;
  from.select(tower, rows, blockIdx.z);
  out += (size_t)blockIdx.z * rows * out_stride + tower.first_out;
  int first = TILE * blockIdx.x + 16 * MT * warp;
  Rows<IN> next;
  next.read(from.x, tower.in, first, rows, tower.in);
  load_kernel<IN, H>(w1, from.k1, tower.in, tower.h1);
  load_bias(b1, from.b1, tower.h1, H);
  if (tower.h2) {
    load_kernel<H, H>(w2, from.k2, tower.h1, tower.h2);
    load_bias(b2, from.b2, tower.h2, H);
  }
  load_kernel<H, OUT>(w3, from.k3, tower.last(), tower.out);
  load_kernel<H, OUT, true>(rest3, from.k3, tower.last(), tower.out);
  load_bias(b3, from.b3, tower.out, OUT);
  __syncthreads();
  while (first < rows) {
    next.write(xs);
    __syncwarp();
    uint32_t a[MT][IN / 16][4], h[MT][STEPS][4], slope[MT][STEPS][4];
    load_left<SX>(a, xs);
    __syncwarp();
    int here = first;
    first += TILE * gridDim.x;
    next.read(from.x, tower.in, first, rows, tower.in);
    compute_layer(h, slope, a, w1, b1, kind, tower.in);
    if (tower.h2) {
      uint32_t h1[MT][STEPS][4];
      memcpy(h1, h, sizeof h);
      compute_layer(h, slope, h1, w2, b2, kind);
    }
    float y[MT][OUT / 8][4];
    set_bias(y, b3);
    multiply<SO, false>(y, h, w3, 0);
    multiply<SO, false>(y, h, rest3, 0);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
      for (int n = 0; n < OUT / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          int row = here + 16 * m + g + 8 * (i >> 1), column = 8 * n + 2 * t + (i & 1);
          if (row < rows && column < tower.out) out[(size_t)row * out_stride + column] = y[m][n][i];
        }
  }
}
#else
#ifdef BACKWARD_INPUTS
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    NAME(OPERANDS, const float* gradient, float* partial, float* dx0, float* dx1) {
#else
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(OPERANDS, const float* gradient, float* partial) {
#endif
  extern __shared__ __align__(16) Number shared[];
  Number *w1 = shared, *w2 = w1 + IN * SH, *w3 = w2 + H * SH, *xs = w3 + H * SO, *gs = xs + TILE * SX;
  Number *h1s = gs + TILE * SO, *h2s = h1s + TILE * SH, *d1s = h2s + TILE * SH, *d2s = d1s + TILE * SH;
  float *b1 = reinterpret_cast<float*>(d2s + TILE * SH), *b2 = b1 + H;
  int warp = threadIdx.x >> 5, own = 16 * MT * warp;  // the warp's first row
  Tower tower = read_tower(sizes, blockIdx.y);
  int rows = sizes[0], out_stride = sizes[1], kind = sizes[3];
  bool deep = tower.h2 > 0;
  Operands from = SELECTED;
  from.select(tower, rows, blockIdx.z);
  partial += (size_t)(blockIdx.z * gridDim.x + blockIdx.x) * sizes[2];
  gradient += (size_t)blockIdx.z * rows * out_stride + tower.first_out;
#ifdef BACKWARD_INPUTS
  float* dx = (blockIdx.y ? dx1 : dx0) + (size_t)blockIdx.z * rows * tower.in;
#endif
  load_kernel<IN, H>(w1, from.k1, tower.in, tower.h1);
  load_bias(b1, from.b1, tower.h1, H);
  if (deep) {
    load_kernel<H, H>(w2, from.k2, tower.h1, tower.h2);
    load_bias(b2, from.b2, tower.h2, H);
  }
  load_kernel<H, OUT>(w3, from.k3, tower.last(), tower.out);
  // Each warp sums a part of every gradient: of the head 16 rows, of the others 16 columns.
  float dw1[IN / 16][2][4] = {}, dw2[H / 16][2][4] = {}, dw3[1][OUT / 8][4] = {};
  float db1[1][4] = {}, db2[1][4] = {}, db3[OUT / 16][4] = {};
  __syncthreads();
  int first = TILE * blockIdx.x + own, step = TILE * gridDim.x;
  Rows<IN> next_x;
  Rows<OUT> next_gradient;
  next_x.read(from.x, tower.in, first, rows, tower.in);
  next_gradient.read(gradient, out_stride, first, rows, tower.out);
  for (; first - own < rows; first += step) {
    next_x.write(xs + own * SX);
    next_gradient.write(gs + own * SO);
    __syncwarp();
    uint32_t d1[MT][STEPS][4], slope1[MT][STEPS][4], g[MT][OUT / 16][4];
    {
      uint32_t x[MT][IN / 16][4], h1[MT][STEPS][4];
      load_left<SX>(x, xs + own * SX);
      compute_layer(h1, slope1, x, w1, b1, kind, tower.in);
      store_rows(h1s + own * SH, h1);
      load_left<SO>(g, gs + own * SO);
      if (deep) {
        uint32_t h2[MT][STEPS][4], d2[MT][STEPS][4], slope2[MT][STEPS][4];
        compute_layer(h2, slope2, h1, w2, b2, kind);
        store_rows(h2s + own * SH, h2);
        go_back<SO>(d2, slope2, g, w3);
        store_rows(d2s + own * SH, d2);
        go_back<SH>(d1, slope1, d2, w2);
      } else {
        go_back<SO>(d1, slope1, g, w3);
      }
    }
    store_rows(d1s + own * SH, d1);
#ifdef BACKWARD_INPUTS
#pragma unroll
    for (int part = 0; part < IN; part += IN / MT) {
      float y[MT][IN / 8 / MT][4];
      clear(y);
      multiply<SH, true>(y, d1, w1, part);
      int lane = threadIdx.x & 31;
#pragma unroll
      for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < IN / 8 / MT; n++)
#pragma unroll
          for (int i = 0; i < 4; i++) {
            int row = first + 16 * m + (lane >> 2) + 8 * (i >> 1), column = part + 8 * n + 2 * (lane & 3) + (i & 1);
            if (row < rows && column < tower.in) dx[(size_t)row * tower.in + column] = y[m][n][i];
          }
    }
#endif
    next_x.read(from.x, tower.in, first + step, rows, tower.in);
    next_gradient.read(gradient, out_stride, first + step, rows, tower.out);
    __syncthreads();
    accumulate<SH, SO>(dw3, db3, deep ? h2s : h1s, 16 * warp, gs, 0, warp == 0);
    if (deep) accumulate<SH, SH>(dw2, db2, h1s, 0, d2s, 16 * warp);
    accumulate<SX, SH>(dw1, db1, xs, 0, d1s, 16 * warp);
    __syncthreads();  // the tiles may be overwritten
  }
  store_gradient(partial + tower.weights, partial + tower.bias1(), dw1, db1, 0, 16 * warp, tower.in, tower.h1);
  if (deep)
    store_gradient(partial + tower.kernel2(), partial + tower.bias2(), dw2, db2, 0, 16 * warp, tower.h1, tower.h2);
  store_gradient(partial + tower.kernel3(), partial + tower.bias3(), dw3, db3, 16 * warp, 0, tower.last(), tower.out);
}
#endif
