// Small networks ("towers": one or two hidden layers of up to 64 units, then a linear head) in one kernel each way.
//
// A warp owns 16 rows of the batch and carries their activations from layer to layer in registers: the accumulators of
// one layer's products are the left operands of the next one's, because the order in which a product sums over k is
// free, as long as both operands use the same. Only inputs and outputs touch device memory. The backward pass computes
// the hidden layers again, and sums the gradients of weights in registers over all tiles of rows that a block works
// on; `partial` has one sum per block, which the caller adds up. Everything is deterministic.
//
// Products are TF32 with float32 sums: inputs, weights and gradients of outputs are rounded to its 11 bits, what lies
// between is cut off there by the hardware. tanh is the hardware's, good to 2^-11.
//
// Compile-time sizes: IN (inputs, padded: 32 or 64), OUT (outputs, padded: 16 or 32), and FORWARD (with MT, the tiles of
// 16 rows that a warp works on at once), BACKWARD or BACKWARD_INPUTS (which also gives the gradient of the inputs);
// BLOCKS: how many a multiprocessor should hold.
// Real sizes are in `sizes`: rows, outputs of all towers, weights of all towers, activation, then for each tower
//   inputs, width 1, width 2 (0: one hidden layer), outputs, first weight in `partial`, first output, 0, 0.
// Kernels [i, o] and biases [o] of a tower's layers come one after the other; so do their gradients in `partial`.
// With one hidden layer, those of the second are not read. grid: (blocks, towers, groups), inputs
// [groups, rows, in], weights [groups, ...].

#include "mlp.cuh"

namespace {

constexpr int TILE = 16 * WARPS;  // rows
constexpr int NT = H / 8;  // tiles of 8 columns

// Rows lie in shared memory in pairs (g, g + 8) of the 16 that belong to a warp: `place` is where the pair's numbers of a
// column are. Four in a row are then a left operand of `mma`, or two right ones of a product over rows. Strides are 8
// more than a multiple of 16, and columns of every other two pairs are swapped, so that no two lanes meet in a bank.
constexpr int SH = H + 8, SX = IN + 8, SG = OUT + 8;
template <int STRIDE>
__device__ __forceinline__ int place(int pair, int column) {
  return 2 * (pair * STRIDE + (column ^ (4 * ((pair >> 1) & 1))));
}

// Rounds to the 11 significant bits of TF32; NaN stays NaN. (`cvt.rna.tf32` takes twice as long.)
__device__ __forceinline__ float tf32(float x) { return fmaf(x, -8192.0f, fmaf(x, 8192.0f, x)); }

// c += a b for a 16x8 tile. Lane (g, t): a = [g, k], [g + 8, k], [g, k'], [g + 8, k'], b = [k, g], [k', g] for its two
// k, c = [g, 2t], [g, 2t + 1], [g + 8, 2t], [g + 8, 2t + 1]. With k = 2t and k' = 2t + 1, c in the order 0, 2, 1, 3 is
// the left operand of a following product.
__device__ __forceinline__ void mma(float (&c)[4], float a0, float a1, float a2, float a3, float b0, float b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(__float_as_uint(a0)), "r"(__float_as_uint(a1)), "r"(__float_as_uint(a2)), "r"(__float_as_uint(a3)),
        "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

// Copies a kernel [rows, columns], or its transpose, to shared memory as the right operand [K, N] of products: the four
// numbers that a lane needs for two steps along k lie together. Missing numbers are 0.
template <int K, int N, bool TRANSPOSED>
__device__ void load_kernel(float* to, const float* from, int rows, int columns) {
#pragma unroll
  for (int i = 0; i < K * N / 4 / THREADS; i++) {
    int d = threadIdx.x + i * THREADS;
    int lane = d % 32, n = 8 * (d / 32 % (N / 8)) + (lane >> 2), first = 16 * (d / (4 * N)) + 2 * (lane & 3);
    float4 four;
    float* value = reinterpret_cast<float*>(&four);
#pragma unroll
    for (int q = 0; q < 4; q++) {
      int k = first + 8 * (q >> 1) + (q & 1), r = TRANSPOSED ? n : k, c = TRANSPOSED ? k : n;
      value[q] = r < rows && c < columns ? tf32(from[r * columns + c]) : 0.0f;
    }
    reinterpret_cast<float4*>(to)[d] = four;
  }
}

// 16 rows of [rows, columns] on their way to shared memory: read ahead, while the rows before are worked on.
template <int PADDED, int STRIDE>
struct Rows {
  static constexpr int WIDE = PADDED < 32 ? PADDED : 32, AT_ONCE = 32 / WIDE, COUNT = 8 / AT_ONCE;
  float2 value[PADDED / WIDE][COUNT];

  // Reads the rows from `first` on; those beyond the last, and columns beyond the last, are 0.
  __device__ __forceinline__ void read(const float* from, int from_stride, int first, int rows, int columns) {
    int lane = threadIdx.x & 31, column = lane % WIDE, offset = lane / WIDE, left = rows - first - offset;
    const float* at = from + (size_t)(first + offset) * from_stride + column;
#pragma unroll
    for (int c = 0; c < PADDED / WIDE; c++) {
      bool inside = c * WIDE + column < columns;
#pragma unroll
      for (int i = 0; i < COUNT; i++) {
        int r = i * AT_ONCE;
        value[c][i].x = inside && r < left ? __ldg(at + r * from_stride + c * WIDE) : 0.0f;
        value[c][i].y = inside && r + 8 < left ? __ldg(at + (r + 8) * from_stride + c * WIDE) : 0.0f;
      }
    }
  }

  // Writes them as the pairs that begin at `pair`.
  __device__ __forceinline__ void write(float* to, int pair) const {
    int lane = threadIdx.x & 31, column = lane % WIDE, offset = lane / WIDE;
#pragma unroll
    for (int c = 0; c < PADDED / WIDE; c++)
#pragma unroll
      for (int i = 0; i < COUNT; i++)
        *reinterpret_cast<float2*>(to + place<STRIDE>(pair + offset + i * AT_ONCE, c * WIDE + column)) =
            make_float2(tf32(value[c][i].x), tf32(value[c][i].y));
  }
};

template <int M, int PADDED, int STRIDE>
__device__ __forceinline__ void load_tiles(float* to, const float* from, int columns, int first, int rows) {
#pragma unroll
  for (int m = 0; m < M; m++) {
    Rows<PADDED, STRIDE> tile;
    tile.read(from, columns, first + 16 * m, rows, columns);
    tile.write(to, 8 * m);
  }
}

template <int N>
__device__ __forceinline__ void clear(float (&c)[1][N][4]) {
#pragma unroll
  for (int n = 0; n < N; n++) c[0][n][0] = c[0][n][1] = c[0][n][2] = c[0][n][3] = 0.0f;
}

// c += a w for tiles of 16 rows in shared memory whose pairs begin at `pair`, of which `used` columns are not 0.
template <int K, int STRIDE, int M, int N>
__device__ __forceinline__ void multiply_shared(float (&c)[M][N][4], const float* a, int pair, const float* w,
                                                int used) {
  int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int k = 0; k < K; k += 16) {
    if (k >= used) break;
    float4 left[M], b[N];
#pragma unroll
    for (int m = 0; m < M; m++)
      left[m] = *reinterpret_cast<const float4*>(a + place<STRIDE>(pair + 8 * m + g, k + 2 * t));
#pragma unroll
    for (int n = 0; n < N; n++) {
      b[n] = reinterpret_cast<const float4*>(w)[(k / 16 * N + n) * 32 + lane];
#pragma unroll
      for (int m = 0; m < M; m++) mma(c[m][n], left[m].x, left[m].y, left[m].z, left[m].w, b[n].x, b[n].y);
    }
    if (k + 8 >= used) break;
#pragma unroll
    for (int m = 0; m < M; m++)
      left[m] = *reinterpret_cast<const float4*>(a + place<STRIDE>(pair + 8 * m + g, k + 8 + 2 * t));
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int m = 0; m < M; m++) mma(c[m][n], left[m].x, left[m].y, left[m].z, left[m].w, b[n].z, b[n].w);
  }
}

// c += a w for tiles of 16 rows in registers, as left operands.
template <int M, int N>
__device__ __forceinline__ void multiply(float (&c)[M][N][4], const float (&a)[M][NT][4], const float* w) {
  int lane = threadIdx.x & 31;
#pragma unroll
  for (int k = 0; k < NT; k += 2) {
    float4 b[N];
#pragma unroll
    for (int n = 0; n < N; n++) {
      b[n] = reinterpret_cast<const float4*>(w)[(k / 2 * N + n) * 32 + lane];
#pragma unroll
      for (int m = 0; m < M; m++) mma(c[m][n], a[m][k][0], a[m][k][1], a[m][k][2], a[m][k][3], b[n].x, b[n].y);
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int m = 0; m < M; m++)
        mma(c[m][n], a[m][k + 1][0], a[m][k + 1][1], a[m][k + 1][2], a[m][k + 1][3], b[n].z, b[n].w);
  }
}

// The activations h of z as left operands, and their derivatives.
template <int KIND, int M>
__device__ __forceinline__ void activate_each(const float (&z)[M][NT][4], float (&h)[M][NT][4],
                                              float (&slope)[M][NT][4]) {
  constexpr int ORDER[4] = {0, 2, 1, 3};
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) h[m][n][i] = activate<KIND>(z[m][n][ORDER[i]], slope[m][n][i]);
}

template <int M>
__device__ __forceinline__ void activate_all(const float (&z)[M][NT][4], float (&h)[M][NT][4],
                                             float (&slope)[M][NT][4], int kind) {
  if (kind == TANH) activate_each<TANH>(z, h, slope);
  else if (kind == RELU) activate_each<RELU>(z, h, slope);
  else if (kind == GELU) activate_each<GELU>(z, h, slope);
  else activate_each<SILU>(z, h, slope);
}

// The gradient d of what is before an activation, as left operands, given that of what is behind it.
__device__ __forceinline__ void multiply_slopes(const float (&z)[1][NT][4], const float (&slope)[1][NT][4],
                                                float (&d)[1][NT][4]) {
  constexpr int ORDER[4] = {0, 2, 1, 3};
#pragma unroll
  for (int n = 0; n < NT; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) d[0][n][i] = z[0][n][ORDER[i]] * slope[0][n][i];
}

// A warp's 16 rows, as left operands, into the tile of all rows.
__device__ __forceinline__ void store_rows(float* to, int pair, const float (&a)[1][NT][4]) {
  int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
  for (int n = 0; n < NT; n++)
    *reinterpret_cast<float4*>(to + place<SH>(pair + g, 8 * n + 2 * t)) = make_float4(a[0][n][0], a[0][n][1], a[0][n][2], a[0][n][3]);
}

// c += a^T b over the rows of a tile, for the columns [row, row + 16 M) of a and [column, column + 8 N) of b; `total`
// gets the lane's part of b's column sums. Lane (g, t) has the rows row + 16 m + 2 g + {0, 1}, and the columns
// column + 16 (n / 2) + 4 t + {0, 2} + n % 2 of c, in the order of `mma`.
template <int M, int N, int A, int B>
__device__ __forceinline__ void accumulate(float (&c)[M][N][4], float (&total)[N], const float* a, int row,
                                           const float* b, int column) {
  int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
  for (int k = 0; k < TILE / 2; k += 4) {
    float4 left[M], right[N / 2];
#pragma unroll
    for (int m = 0; m < M; m++) left[m] = *reinterpret_cast<const float4*>(a + place<A>(k + t, row + 16 * m + 2 * g));
#pragma unroll
    for (int n = 0; n < N / 2; n++) {
      right[n] = *reinterpret_cast<const float4*>(b + place<B>(k + t, column + 16 * n + 2 * g));
      total[2 * n] += right[n].x + right[n].y;
      total[2 * n + 1] += right[n].z + right[n].w;
    }
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int n = 0; n < N / 2; n++) {
        mma(c[m][2 * n], left[m].x, left[m].z, left[m].y, left[m].w, right[n].x, right[n].y);
        mma(c[m][2 * n + 1], left[m].x, left[m].z, left[m].y, left[m].w, right[n].z, right[n].w);
      }
  }
}

// The gradient of a kernel [rows, columns], of which c is the part that begins at (row, column); and of its bias.
template <int M, int N>
__device__ __forceinline__ void store_gradient(float* kernel, float* bias, float (&c)[M][N][4], float (&total)[N],
                                               int row, int column, int rows, int columns) {
  int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
  for (int n = 0; n < N; n++) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int r = row + 16 * m + 2 * g + (i >> 1), o = column + 16 * (n / 2) + 4 * t + 2 * (i & 1) + n % 2;
        if (r < rows && o < columns) kernel[r * columns + o] = c[m][n][i];
      }
    float sum = total[n];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    int o = column + 16 * (n / 2) + 2 * g + n % 2;
    if (row == 0 && t == 0 && o < columns) bias[o] = sum;
  }
}

}  // namespace

#ifdef FORWARD
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(OPERANDS, float* out) {
  extern __shared__ float shared[];
  float *w1 = shared, *w2 = w1 + IN * H, *w3 = w2 + H * H, *b1 = w3 + H * OUT, *b2 = b1 + H, *b3 = b2 + H;
  int warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
  float* xs = b3 + OUT + warp * MT * 16 * SX;
  Tower tower = read_tower(sizes, blockIdx.y);
  int rows = sizes[0], out_stride = sizes[1], kind = sizes[3];
  Operands from = SELECTED;
  from.select(tower, rows, blockIdx.z);
  out += (size_t)blockIdx.z * rows * out_stride + tower.first_out;
  int first = 16 * MT * (blockIdx.x * WARPS + warp);
  load_tiles<MT, IN, SX>(xs, from.x, tower.in, first, rows);
  load_kernel<IN, H, false>(w1, from.k1, tower.in, tower.h1);
  load_bias(b1, from.b1, tower.h1, H);
  if (tower.h2) {
    load_kernel<H, H, false>(w2, from.k2, tower.h1, tower.h2);
    load_bias(b2, from.b2, tower.h2, H);
  }
  load_kernel<H, OUT, false>(w3, from.k3, tower.last(), tower.out);
  load_bias(b3, from.b3, tower.out, OUT);
  __syncthreads();
  while (first < rows) {
    float z[MT][NT][4], h[MT][NT][4], slope[MT][NT][4];
    set_bias(z, b1);
    multiply_shared<IN, SX>(z, xs, 0, w1, tower.in);
    activate_all(z, h, slope, kind);
    if (tower.h2) {
      set_bias(z, b2);
      multiply(z, h, w2);
      activate_all(z, h, slope, kind);
    }
    float y[MT][OUT / 8][4];
    set_bias(y, b3);
    multiply(y, h, w3);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
      for (int n = 0; n < OUT / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          int row = first + 16 * m + g + 8 * (i >> 1), column = 8 * n + 2 * t + (i & 1);
          if (row < rows && column < tower.out) out[(size_t)row * out_stride + column] = y[m][n][i];
        }
    first += MT * TILE * gridDim.x;
    __syncwarp();
    if (first < rows) load_tiles<MT, IN, SX>(xs, from.x, tower.in, first, rows);
    __syncwarp();
  }
}
#else
#ifdef BACKWARD_INPUTS
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    NAME(OPERANDS, const float* gradient, float* partial, float* dx0, float* dx1) {
#else
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(OPERANDS, const float* gradient, float* partial) {
#endif
  extern __shared__ float shared[];
  float *w1 = shared, *w2 = w1 + IN * H, *w2t = w2 + H * H, *w3t = w2t + H * H, *b1 = w3t + H * OUT, *b2 = b1 + H;
  float *xs = b2 + H, *gs = xs + TILE * SX;
  float *h1s = gs + TILE * SG, *h2s = h1s + TILE * SH;
#ifdef BACKWARD_INPUTS
  float* w1t = h2s + TILE * SH;
#endif
  int warp = threadIdx.x >> 5;
  Tower tower = read_tower(sizes, blockIdx.y);
  int rows = sizes[0], out_stride = sizes[1], kind = sizes[3];
  bool deep = tower.h2 > 0;
  Operands from = SELECTED;
  from.select(tower, rows, blockIdx.z);
  partial += (size_t)(blockIdx.z * gridDim.x + blockIdx.x) * sizes[2];
  gradient += (size_t)blockIdx.z * rows * out_stride + tower.first_out;
  load_kernel<IN, H, false>(w1, from.k1, tower.in, tower.h1);
  load_bias(b1, from.b1, tower.h1, H);
  if (deep) {
    load_kernel<H, H, false>(w2, from.k2, tower.h1, tower.h2);
    load_kernel<H, H, true>(w2t, from.k2, tower.h1, tower.h2);
    load_bias(b2, from.b2, tower.h2, H);
  }
  load_kernel<OUT, H, true>(w3t, from.k3, tower.last(), tower.out);
#ifdef BACKWARD_INPUTS
  load_kernel<H, IN, true>(w1t, from.k1, tower.in, tower.h1);
  float* dx = (blockIdx.y ? dx1 : dx0) + (size_t)blockIdx.z * rows * tower.in;
#endif
  int pair = 8 * warp;  // the warp's first
  // Each warp sums a part of every gradient: of the middle kernel a quarter, of the others some columns or rows.
  int middle_row = 32 * (warp & 1), middle_column = 32 * (warp >> 1);
  float dw1[IN / 16][2][4] = {}, dw2[2][4][4] = {}, dw3[1][OUT / 8][4] = {}, db1[2] = {}, db2[4] = {}, db3[OUT / 8] = {};
  __syncthreads();
  int first = TILE * blockIdx.x + 16 * warp, step = TILE * gridDim.x;
  Rows<IN, SX> next_x;
  Rows<OUT, SG> next_gradient;
  next_x.read(from.x, tower.in, first, rows, tower.in);
  next_gradient.read(gradient, out_stride, first, rows, tower.out);
  for (; first - 16 * warp < rows; first += step) {
    next_x.write(xs, pair);
    next_gradient.write(gs, pair);
    __syncwarp();
    float z[1][NT][4], d[1][NT][4], slope1[1][NT][4], slope2[1][NT][4];
    set_bias(z, b1);
    multiply_shared<IN, SX>(z, xs, pair, w1, tower.in);
    activate_all(z, d, slope1, kind);
    store_rows(h1s, pair, d);
    if (deep) {
      set_bias(z, b2);
      multiply(z, d, w2);
      activate_all(z, d, slope2, kind);
      store_rows(h2s, pair, d);
    }
    clear(z);
    multiply_shared<OUT, SG>(z, gs, pair, w3t, tower.out);
    __syncthreads();
    accumulate<1, OUT / 8, SH, SG>(dw3, db3, deep ? h2s : h1s, 16 * warp, gs, 0);
    if (deep) {
      multiply_slopes(z, slope2, d);
      __syncthreads();  // every warp has read the last hidden layer
      store_rows(h2s, pair, d);
      clear(z);
      multiply(z, d, w2t);
      __syncthreads();
      accumulate<2, 4, SH, SH>(dw2, db2, h1s, middle_row, h2s, middle_column);
    }
    multiply_slopes(z, slope1, d);
    next_x.read(from.x, tower.in, first + step, rows, tower.in);
    next_gradient.read(gradient, out_stride, first + step, rows, tower.out);
    __syncthreads();  // every warp has read the first hidden layer
    store_rows(h1s, pair, d);
    __syncthreads();
    accumulate<IN / 16, 2, SX, SH>(dw1, db1, xs, 0, h1s, 16 * warp);
#ifdef BACKWARD_INPUTS
    {
      float y[1][IN / 8][4];
      clear(y);
      multiply(y, d, w1t);
      int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
      for (int n = 0; n < IN / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          int row = first + g + 8 * (i >> 1), column = 8 * n + 2 * t + (i & 1);
          if (row < rows && column < tower.in) dx[(size_t)row * tower.in + column] = y[0][n][i];
        }
    }
#endif
    __syncthreads();  // the tiles may be overwritten
  }
  store_gradient(partial + tower.weights, partial + tower.bias1(), dw1, db1, 0, 16 * warp, tower.in, tower.h1);
  if (deep)
    store_gradient(partial + tower.kernel2(), partial + tower.bias2(), dw2, db2, middle_row, middle_column, tower.h1,
                   tower.h2);
  store_gradient(partial + tower.kernel3(), partial + tower.bias3(), dw3, db3, 16 * warp, 0, tower.last(), tower.out);
}
#endif
