// Enough of CUDA to run blocks.cu in one host thread, meant to find mistakes rather than to be fast.
//
// The threads of a block are coroutines that change places at __syncthreads alone, in the order of their numbers or
// the opposite one: what one thread reads before another has written it comes out differently in one of the two.
// Copies to shared memory arrive as late as they may, when they are waited for. A barrier that not all threads reach,
// and an address that is not aligned for its copy, end the launch with an error.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <tuple>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

struct Index { int x; };
static Index blockIdx, blockDim, threadIdx;
using std::max;
using std::min;

struct Copy { float* to; const float* from; int bytes; bool there; };
struct Thread {
    ucontext_t at;
    std::deque<std::vector<Copy>> groups = std::deque<std::vector<Copy>>(1);
    int barriers = 0;
    bool done = false;
};
static std::vector<Thread> threads;
static const size_t STACK = 1 << 16;
static std::vector<std::unique_ptr<char[]>> stacks;  // of all launches: to clear them takes longer than to use them
static ucontext_t scheduler;
static bool backwards, misaligned;
static std::vector<float> told;  // what each thread shuffles

inline void __syncthreads() {
    Thread& own = threads[threadIdx.x];
    own.barriers++;
    int number = threadIdx.x;
    swapcontext(&own.at, &scheduler);
    threadIdx.x = number;
}

inline float __shfl_xor_sync(unsigned, float value, int mask) {
    told[threadIdx.x] = value;
    __syncthreads();
    float other = told[threadIdx.x ^ mask];
    __syncthreads();
    return other;
}

template <int BYTES>
void copy_or_zero(float* to, const float* from, bool there) {
    misaligned |= (uintptr_t)to % BYTES || (there && (uintptr_t)from % BYTES);
    threads[threadIdx.x].groups.back().push_back({to, from, BYTES, there});
}

inline void close_group() { threads[threadIdx.x].groups.emplace_back(); }

template <int N>
void wait_groups() {
    auto& groups = threads[threadIdx.x].groups;
    for (; (int)groups.size() - 1 > N; groups.pop_front())
        for (const Copy& one : groups.front())
            if (one.there) std::memcpy(one.to, one.from, one.bytes);
            else std::memset(one.to, 0, one.bytes);
}

namespace {  // of this library alone: others, with other constants, are loaded beside it

template <auto KERNEL>
struct Launch;
template <class... A, void (*KERNEL)(A...)>
struct Launch<KERNEL> {
    static inline void (*call)();

    // 0, or what went wrong: 1 a barrier that some did not reach, 2 an address that is not aligned.
    static int run(int blocks, int size, int reversed, A... a) {
        static void (*enter)(A...) = KERNEL;
        static thread_local std::tuple<A...>* given;
        std::tuple<A...> all(a...);
        given = &all;
        call = [] { std::apply(enter, *given); threads[threadIdx.x].done = true; };
        backwards = reversed, misaligned = false, blockDim.x = size;
        for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
            threads = std::vector<Thread>(size);
            told.assign(size, 0);
            for (int n = 0; n < size; n++) {
                ucontext_t& at = threads[n].at;
                if (n == (int)stacks.size()) stacks.emplace_back(new char[STACK]);
                getcontext(&at);
                at.uc_stack = {stacks[n].get(), 0, STACK};
                at.uc_link = &scheduler;
                makecontext(&at, call, 0);
            }
            for (int left = size; left > 0;)
                for (int n = 0; n < size; n++) {
                    threadIdx.x = backwards ? size - 1 - n : n;
                    Thread& next = threads[threadIdx.x];
                    if (next.done) continue;
                    swapcontext(&scheduler, &next.at);
                    left -= next.done;
                }
            for (const Thread& thread : threads)
                if (thread.barriers != threads[0].barriers) return 1;
        }
        return misaligned ? 2 : 0;
    }
};

}  // namespace
