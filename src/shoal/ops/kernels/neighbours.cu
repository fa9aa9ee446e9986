// The k nearest living others of every agent, exact, for a batch of worlds. The meaning is that of the plain form in
// shoal/ops/neighbours.py: nearest first, equal distances by lower index, nobody its own neighbour, the dead nobody's.
//
//   position  float2 [worlds, n]
//   alive     uint8  [worlds, n]
//   sizes     int    [3]            n, k, cells along a side (the last for `cells` only)
//   index     int    [worlds, n, k] -1 where fewer than k others live
//
// One thread serves one agent and keeps its SLOTS best so far in registers, sorted. A candidate is one 64-bit number,
// the bits of its squared distance above its index: both orders in one comparison, since distances are not negative.
// More than SLOTS neighbours take several rounds, each for those after the last of the round before.
//
// Sorting a candidate in costs ten times as much as refusing it, and a warp pays for it if one of its 32 agents wants
// it. So an agent first lets candidates that are near enough wait, and a warp sorts in when some waiting room is full.
//
// `brute`: every agent looks at every other; blocks of agents, candidates in tiles through shared memory. Any n.
// `cells`: one block a world sorts its agents into square cells in shared memory; an agent looks at the cells around
//          its own, ring after ring, until no cell left can hold a nearer one.
//
// Built by kernels/build.py, once for each number of slots, into PTX, which the driver of any later GPU accepts.

#ifndef SLOTS
#error "define SLOTS, the number of neighbours kept in registers"
#endif
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

typedef unsigned long long Key;

static constexpr Key NOBODY = ~0ull;
static constexpr float FARTHEST = 3.402823466e38f;
static constexpr float INFINITE = __builtin_huge_valf();
static constexpr unsigned WARP = ~0u;
static constexpr int WAITING = 24;  // places in an agent's waiting room
static constexpr int AT_ONCE = 4;   // candidates met between two looks at whether it is full

__device__ __forceinline__ float squared_distance(float2 a, float2 b) {
  const float dx = a.x - b.x, dy = a.y - b.y;
  return fmaf(dx, dx, dy * dy);
}

// What an agent has found so far. The threads of a warp call `meet` and `seat` together.
struct Nearest {
  const float2* place;  // of the candidates, in shared memory
  const int* number;
  unsigned short* room;  // this thread's places for those who wait, `stride` apart
  int stride;
  float2 own;
  int me;
  Key best[SLOTS];
  Key after;    // only candidates whose key is at least this count
  float bound;  // candidates farther away need not wait
  int waiting;

  __device__ __forceinline__ void begin(Key last) {
#pragma unroll
    for (int s = 0; s < SLOTS; ++s) best[s] = NOBODY;
    after = last, bound = INFINITE, waiting = 0;
  }

  // Meets the candidates from `slot` up to `last`, the first few of them.
  __device__ __forceinline__ void meet(int slot, int last) {
#pragma unroll
    for (int next = slot; next < slot + AT_ONCE; ++next)
      if (next < last && squared_distance(own, place[next]) <= bound) room[stride * waiting++] = next;
    if (__any_sync(WARP, waiting > WAITING - AT_ONCE)) seat();
  }

  // Sorts in all who wait.
  __device__ __forceinline__ void seat() {
    for (int w = 0; __any_sync(WARP, w < waiting); ++w) {
      if (w >= waiting) continue;
      const int slot = room[stride * w], index = number[slot];
      const float distance = fminf(squared_distance(own, place[slot]), FARTHEST);
      const Key key = (Key(__float_as_uint(distance)) << 32) | unsigned(index);
      if (index != me && key >= after && key < best[SLOTS - 1]) insert(key);
    }
    waiting = 0;
    if (farthest() < FARTHEST) bound = fminf(bound, farthest());
  }

  __device__ __forceinline__ void insert(Key key) {
    bool before[SLOTS];  // all compared first, then all moved: nothing waits for its neighbour
#pragma unroll
    for (int s = 0; s < SLOTS; ++s) before[s] = key < best[s];
#pragma unroll
    for (int s = SLOTS - 1; s > 0; --s) best[s] = before[s - 1] ? best[s - 1] : before[s] ? key : best[s];
    best[0] = before[0] ? key : best[0];
  }

  __device__ __forceinline__ float farthest() const { return __uint_as_float(unsigned(best[SLOTS - 1] >> 32)); }

  // Writes this round's share of a row and returns where the next round goes on.
  __device__ __forceinline__ Key write(int* row, int first, int k) const {
#pragma unroll
    for (int s = 0; s < SLOTS; ++s)
      if (first + s < k) row[first + s] = best[s] == NOBODY ? -1 : int(unsigned(best[s]));
    return best[SLOTS - 1] == NOBODY ? NOBODY : best[SLOTS - 1] + 1;
  }
};

#ifdef BRUTE
static constexpr int TILE = 512;
static constexpr int HALF = SLOTS < 4 ? 4 : SLOTS < 8 ? 8 : SLOTS < 16 ? 16 : 32;
static constexpr int GROUPS = 2 * HALF;

template <int N>
__device__ __forceinline__ void sort(float (&x)[N]) {  // bitonic, N a power of two
#pragma unroll
  for (int size = 2; size <= N; size *= 2)
#pragma unroll
    for (int away = size / 2; away > 0; away /= 2)
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (!(i & away)) {
          const float low = fminf(x[i], x[i | away]), high = fmaxf(x[i], x[i | away]);
          x[i] = i & size ? high : low;
          x[i | away] = i & size ? low : high;
        }
}

// A distance within which at least SLOTS others are, if there are so many. The candidates are dealt into groups, and
// the nearest of each group counts: the SLOTS + 1 nearest of these (the agent itself may be among them) are within it.
__device__ __forceinline__ float bound_of(float2 own, const float2* place, int count) {
  if (SLOTS >= HALF) return INFINITE;
  float even[HALF], odd[HALF];
#pragma unroll
  for (int g = 0; g < HALF; ++g) even[g] = odd[g] = INFINITE;
  for (int base = 0; base < count; base += GROUPS) {
#pragma unroll
    for (int g = 0; g < HALF; ++g) {
      if (base + 2 * g < count) even[g] = fminf(even[g], squared_distance(own, place[base + 2 * g]));
      if (base + 2 * g + 1 < count) odd[g] = fminf(odd[g], squared_distance(own, place[base + 2 * g + 1]));
    }
  }
  sort(even), sort(odd);
  float bound = 0.f;  // the smaller of each pair, one list forwards and one backwards, are the nearest of both
#pragma unroll
  for (int g = 0; g <= SLOTS; ++g) bound = fmaxf(bound, fminf(even[g < HALF ? g : 0], odd[g < HALF ? SLOTS - g : 0]));
  return bound;
}

extern "C" __global__ void JOIN(shoal_nearest_brute_, SLOTS)(const float2* __restrict__ position,
                                                            const unsigned char* __restrict__ alive,
                                                            const int* __restrict__ sizes, int* __restrict__ index) {
  extern __shared__ unsigned short room[];  // [WAITING, threads]
  __shared__ float2 place[TILE];
  __shared__ int number[TILE];
  __shared__ int count;
  const int n = sizes[0], k = sizes[1], thread = threadIdx.x;
  const size_t world = size_t(blockIdx.x) * n;
  const int me = blockIdx.y * blockDim.x + thread;
  const float2 own = me < n ? position[world + me] : make_float2(0.f, 0.f);
  Nearest nearest{place, number, room + thread, int(blockDim.x), own, me};
  Key after = 0;
  for (int first = 0; first < k; first += SLOTS) {
    nearest.begin(after);
    for (int tile = 0; tile < n; tile += TILE) {
      __syncthreads();
      if (thread == 0) count = 0;
      __syncthreads();
      for (int j = tile + thread; j < min(tile + TILE, n); j += blockDim.x) {
        if (!alive[world + j]) continue;
        const int slot = atomicAdd(&count, 1);
        place[slot] = position[world + j];
        number[slot] = j;
      }
      __syncthreads();
      if (first == 0 && tile == 0) nearest.bound = bound_of(own, place, count);
      for (int slot = 0; slot < count; slot += AT_ONCE) nearest.meet(slot, count);
      nearest.seat();
    }
    if (me < n) after = nearest.write(index + (world + me) * k, first, k);
  }
}
#endif

#ifdef CELLS
static constexpr int FIRST_RINGS = 2;

__device__ __forceinline__ int cell_along(float x, float low, float per_cell, int side) {
  return min(max(int((x - low) * per_cell), 0), side - 1);
}

__device__ __forceinline__ unsigned ordered(float x) {  // unsigned numbers in the order of the floats
  const unsigned bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float unordered(unsigned x) {
  return __uint_as_float(x & 0x80000000u ? x & 0x7fffffffu : ~x);
}

extern "C" __global__ void JOIN(shoal_nearest_cells_, SLOTS)(const float2* __restrict__ position,
                                                            const unsigned char* __restrict__ alive,
                                                            const int* __restrict__ sizes, int* __restrict__ index) {
  extern __shared__ float2 shared[];  // place [n], number [n], start [side * side + 1], room [WAITING, threads]
  __shared__ unsigned low_x, low_y, high_x, high_y;
  __shared__ int offset;
  const int n = sizes[0], k = sizes[1], side = sizes[2], cells = side * side;
  float2* place = shared;
  int* number = reinterpret_cast<int*>(place + n);
  int* start = number + n;
  unsigned short* room = reinterpret_cast<unsigned short*>(start + cells + 1);
  const size_t world = size_t(blockIdx.x) * n;
  const int thread = threadIdx.x, threads = blockDim.x;

  if (thread == 0) low_x = low_y = ~0u, high_x = high_y = 0u, offset = 0;
  for (int c = thread; c <= cells; c += threads) start[c] = 0;
  __syncthreads();
  unsigned my_low_x = ~0u, my_low_y = ~0u, my_high_x = 0u, my_high_y = 0u;
  for (int j = thread; j < n; j += threads) {
    if (!alive[world + j]) continue;
    const float2 p = position[world + j];
    my_low_x = min(my_low_x, ordered(p.x)), my_high_x = max(my_high_x, ordered(p.x));
    my_low_y = min(my_low_y, ordered(p.y)), my_high_y = max(my_high_y, ordered(p.y));
  }
#pragma unroll
  for (int away = 16; away > 0; away >>= 1) {
    my_low_x = min(my_low_x, __shfl_xor_sync(WARP, my_low_x, away));
    my_low_y = min(my_low_y, __shfl_xor_sync(WARP, my_low_y, away));
    my_high_x = max(my_high_x, __shfl_xor_sync(WARP, my_high_x, away));
    my_high_y = max(my_high_y, __shfl_xor_sync(WARP, my_high_y, away));
  }
  if (thread % 32 == 0) {
    atomicMin(&low_x, my_low_x), atomicMin(&low_y, my_low_y);
    atomicMax(&high_x, my_high_x), atomicMax(&high_y, my_high_y);
  }
  __syncthreads();
  // Nobody alive, or all on one spot: one cell's width is arbitrary then, since every cell but one is empty.
  const bool some = high_x != 0u;
  const float left = some ? unordered(low_x) : 0.f, bottom = some ? unordered(low_y) : 0.f;
  const float extent = some ? fmaxf(unordered(high_x) - left, unordered(high_y) - bottom) : 0.f;
  const float width = fmaxf(extent, 1e-30f) / side, per_cell = 1.f / width;

  for (int j = thread; j < n; j += threads) {
    if (!alive[world + j]) continue;
    const float2 p = position[world + j];
    atomicAdd(&start[cell_along(p.y, bottom, per_cell, side) * side + cell_along(p.x, left, per_cell, side)], 1);
  }
  __syncthreads();
  // Each cell takes its span of the sorted agents; the spans must lie in the order of the cells, so that the cells
  // side by side in a row are one span. A scan by the first warp, 32 cells at a time.
  if (thread < 32) {
    int before = 0;
    for (int base = 0; base < cells; base += 32) {
      const int c = base + thread, own = c < cells ? start[c] : 0;
      int sum = own;
#pragma unroll
      for (int away = 1; away < 32; away <<= 1) {
        const int other = __shfl_up_sync(WARP, sum, away);
        if (thread >= away) sum += other;
      }
      if (c < cells) start[c] = before + sum - own;
      before += __shfl_sync(WARP, sum, 31);
    }
    if (thread == 0) start[cells] = before;
  }
  __syncthreads();
  const int living = start[cells];
  for (int j = thread; j < n; j += threads) {
    const float2 p = position[world + j];
    int slot;
    if (alive[world + j]) {
      const int cell = cell_along(p.y, bottom, per_cell, side) * side + cell_along(p.x, left, per_cell, side);
      slot = atomicAdd(&start[cell], 1);  // afterwards start[c] is where cell c ends
    } else {
      slot = living + atomicAdd(&offset, 1);
    }
    place[slot] = p;
    number[slot] = j;
  }
  __syncthreads();

  const int whole = (n + 31) / 32 * 32;  // a warp stays together: what it has too many of searches for nobody
  for (int q = thread; q < whole; q += threads) {
    const bool real = q < n;
    const float2 own = place[real ? q : 0];
    const int me = real ? number[q] : -1;
    const int cx = cell_along(own.x, left, per_cell, side), cy = cell_along(own.y, bottom, per_cell, side);
    const int outermost = max(max(cx, side - 1 - cx), max(cy, side - 1 - cy));
    Nearest nearest{place, number, room + thread, threads, own, me};
    auto look = [&](bool wanted, int row, int from, int to) {  // at the cells `from` .. `to` of a row
      from = max(from, 0), to = min(to, side - 1);
      wanted = wanted && row >= 0 && row < side && from <= to;
      const int begin = row * side + from;
      const int last = wanted ? start[row * side + to] : 0;
      int slot = wanted && begin > 0 ? start[begin - 1] : 0;
      for (; __any_sync(WARP, slot < last); slot += AT_ONCE) nearest.meet(slot, last);
    };
    Key after = 0;
    for (int first = 0; first < k; first += SLOTS) {
      nearest.begin(after);
      // Near rows first: what comes later is then refused sooner.
      for (int row = 0; row <= 2 * FIRST_RINGS; ++row)
        look(real, cy + (row % 2 ? (row + 1) / 2 : -row / 2), cx - FIRST_RINGS, cx + FIRST_RINGS);
      nearest.seat();
      bool more = real;
      for (int ring = FIRST_RINGS + 1; ring < side; ++ring) {
        // Everyone in this ring or beyond is at least so far away, with some room for rounding.
        const float reach = (ring - 1) * width * 0.999f;
        more = more && ring <= outermost && !(nearest.farthest() < reach * reach);
        if (!__any_sync(WARP, more)) break;
        look(more, cy - ring, cx - ring, cx + ring);
        look(more, cy + ring, cx - ring, cx + ring);
        for (int row = cy - ring + 1; row < cy + ring; ++row) {
          look(more, row, cx - ring, cx - ring);
          look(more, row, cx + ring, cx + ring);
        }
        nearest.seat();
      }
      if (real) after = nearest.write(index + (world + me) * k, first, k);
    }
  }
}
#endif
