// Copies from global to shared memory that go on while the thread computes (compute capability 8.0 and up).
// They come in groups: `close_group` ends one, `wait_groups<N>` waits until all but the N newest have arrived.

template <int BYTES>
__device__ __forceinline__ void copy_or_zero(float* to, const float* from, bool there) {
    unsigned shared = (unsigned)__cvta_generic_to_shared(to);
    int bytes = there ? BYTES : 0;  // what is not copied becomes zero
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(from), "n"(BYTES), "r"(bytes));
}

__device__ __forceinline__ void close_group() { asm volatile("cp.async.commit_group;"); }

template <int N>
__device__ __forceinline__ void wait_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
