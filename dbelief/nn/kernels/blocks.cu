// The block-local kernels that no library has, float32. Arrays and letters as in blocks.py:
//
//     x [rows][columns][q][m]    w [nr][nc][f][g][g][q], K = g g q    y [nr][nc][f][m]
//
// Rows of x and y are x_row and y_row numbers apart. Numbers move in vectors of VECTOR: 4 where every row begins at a
// multiple of 16 bytes, else 1. Given by the compiler's command line: VECTOR, and of `given` BQ, BM, BF, STAGES (its
// tile), QV, QC, MV, MC (what of it is a thread's).

typedef long long wide;  // w may have more than 2^31 numbers

template <int N>
struct alignas(4 * N) Numbers {  // read or written at once
    float at[N];
};
typedef Numbers<VECTOR> Vector;

// strips [nc][rows][g q][m]: strip j holds the tiles j to j + g of each row of x. One block for each row of a strip.
extern "C" __global__ void strips(const float* x, float* out, int rows, int columns, int g, int q, int m, int x_row) {
    int j = blockIdx.x / rows, a = blockIdx.x % rows, each = m / VECTOR;
    const float* from = x + ((wide)a * columns + j) * q * x_row;
    float* to = out + (wide)blockIdx.x * g * q * m;
    for (int n = threadIdx.x; n < g * q * each; n += blockDim.x) {
        int row = n / each, column = n % each * VECTOR;
        *(Vector*)(to + (wide)row * m + column) = *(const Vector*)(from + (wide)row * x_row + column);
    }
}

// out, in one piece, = numbers of [..][n1][n2][n3] floats, s0, s1, s2 and 1 apart, as bfloat16: the nearest, of two the
// even one. They are handled as their bits.
extern "C" __global__ void rounded(
    const unsigned* from, unsigned short* out, wide count, int n1, int n2, wide n3, wide s0, wide s1, int s2) {
    wide n = (wide)blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= count) return;
    wide rows = n / n3, blocks = rows / n2;
    unsigned bits = from[blocks / n1 * s0 + blocks % n1 * s1 + rows % n2 * s2 + n % n3];
    bool number = (bits & 0x7fffffffu) <= 0x7f800000u;  // else what is cut off might be all that makes it none
    out[n] = number ? (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16 : bits >> 16 | 0x40u;
}

// out[n] = |row n of w|, rows of `length` numbers. One warp for each row.
extern "C" __global__ void norms(const float* w, float* out, wide count, int length) {
    wide n = (wide)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    float sum = 0;
    if (n < count)
        for (int k = lane * VECTOR; k < length; k += 32 * VECTOR) {
            Vector some = *(const Vector*)(w + n * length + k);
            for (int v = 0; v < VECTOR; v++) sum += some.at[v] * some.at[v];
        }
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (n < count && lane == 0) out[n] = sqrtf(sum);
}

// x = W^T y, tile by tile: x[a, b] = sum over the blocks (i, j) that see it of w[i, j, :, a - i, b - j]^T y[i, j].
//
// One block of threads computes BQ x BM numbers of one tile, and writes them once: no atomic addition, and a fixed
// order of the sums, block (i, j) by block and neuron by neuron. What it multiplies are boxes of BF rows, out of w
// [BF][BQ] (rows K apart) and out of y [BF][BM]; both have the neuron outermost, as the outer products below want
// them. STAGES - 1 boxes are on their way while one is multiplied. A thread's numbers are QC x MC patches of QV x MV,
// spread over the tile so that the threads of a warp read neighbouring vectors of shared memory.
//
// Registers are limited so that 384 threads and more share a multiprocessor. Tiles at the border are seen by fewer
// blocks: they are first and last in the grid, so that its end is short.
#define THREADS ((BQ / (QV * QC)) * (BM / (MV * MC)))
#define WRITTEN (VECTOR == 1 ? 1 : MV)

struct Box {  // where the next box comes from: neurons f0 to f0 + BF of block (i, j)
    int i, j, f0;
};

template <int WIDTH>
__device__ __forceinline__ void fetch(float (*to)[WIDTH], const float* from, wide row, int height, int width) {
    for (int n = threadIdx.x; n < BF * WIDTH / VECTOR; n += THREADS) {
        int r = n / (WIDTH / VECTOR), c = n % (WIDTH / VECTOR) * VECTOR;
        bool there = r < height && c < width;
        copy_or_zero<4 * VECTOR>(&to[r][c], there ? from + r * row + c : from, there);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, (384 + THREADS - 1) / THREADS)
given(const float* w, const float* y, float* x, int rows, int columns, int g, int q, int f, int m, int y_row, int x_row) {
    __shared__ __align__(16) float ws[STAGES][BF][BQ], ys[STAGES][BF][BM];
    const int nr = rows - g + 1, nc = columns - g + 1;
    const int across = (m + BM - 1) / BM, parts = (q + BQ - 1) / BQ * across;
    const int tile = blockIdx.x / parts, a = tile / columns, b = tile % columns;
    const int q0 = blockIdx.x % parts / across * BQ, m0 = blockIdx.x % parts % across * BM;
    const int i0 = max(0, a - g + 1), i1 = min(nr - 1, a), j0 = max(0, b - g + 1), j1 = min(nc - 1, b);
    const int steps = (i1 - i0 + 1) * (j1 - j0 + 1) * ((f + BF - 1) / BF);
    const int qt = threadIdx.x / (BM / (MV * MC)) * QV, mt = threadIdx.x % (BM / (MV * MC)) * MV;

    Box box = {i0, j0, 0};
    auto fetch_box = [&](int stage) {
        wide neuron = ((wide)box.i * nc + box.j) * f + box.f0, K = (wide)g * g * q;
        const float* seen = w + neuron * K + ((a - box.i) * g + (b - box.j)) * q + q0;
        fetch<BQ>(ws[stage], seen, K, f - box.f0, q - q0);
        fetch<BM>(ys[stage], y + neuron * y_row + m0, y_row, f - box.f0, m - m0);
        if ((box.f0 += BF) >= f) {
            box.f0 = 0;
            if (++box.j > j1) box.j = j0, ++box.i;
        }
    };

    float sum[QC * QV][MC * MV] = {};
    for (int step = 0; step < STAGES - 1; step++) {
        if (step < steps) fetch_box(step);
        close_group();
    }
    for (int step = 0; step < steps; step++) {
        wait_groups<STAGES - 2>();
        __syncthreads();  // this step's box is here for all, and all are done with the one before it
        if (step + STAGES - 1 < steps) fetch_box((step + STAGES - 1) % STAGES);
        close_group();
        const int stage = step % STAGES;
#pragma unroll
        for (int n = 0; n < BF; n++) {
            float left[QC * QV], right[MC * MV];
#pragma unroll
            for (int c = 0; c < QC * QV; c++) left[c] = ws[stage][n][c / QV * (BQ / QC) + qt + c % QV];
#pragma unroll
            for (int c = 0; c < MC * MV; c++) right[c] = ys[stage][n][c / MV * (BM / MC) + mt + c % MV];
#pragma unroll
            for (int r = 0; r < QC * QV; r++)
#pragma unroll
                for (int c = 0; c < MC * MV; c++) sum[r][c] += left[r] * right[c];
        }
    }
#pragma unroll
    for (int r = 0; r < QC * QV; r++) {
        const int number = q0 + r / QV * (BQ / QC) + qt + r % QV;
        float* to = x + ((wide)tile * q + number) * x_row;
#pragma unroll
        for (int c = 0; c < MC * MV; c += WRITTEN) {
            const int sample = m0 + c / MV * (BM / MC) + mt + c % MV;
            Numbers<WRITTEN> some;
            for (int v = 0; v < WRITTEN; v++) some.at[v] = sum[r][c + v];
            if (number < q && sample < m) *(Numbers<WRITTEN>*)(to + sample) = some;
        }
    }
}
