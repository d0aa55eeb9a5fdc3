// A class with virtual functions: the bug is in the override that half of the threads call.
struct Stencil {
    const float *x;
    __device__ Stencil(const float *x) : x(x) {}
    __device__ virtual float at(int i) const = 0;
    __device__ virtual float twice(int i) const { return 2 * at(i); }
};

struct Copy : Stencil {
    __device__ Copy(const float *x) : Stencil(x) {}
    __device__ float at(int i) const override { return x[i]; }
};

struct Left : Stencil {
    int least;
    __device__ Left(const float *x, int least) : Stencil(x), least(least) {}
    __device__ float at(int i) const override {
        return x[i > least ? i - 1 : i];
    }
    __device__ float twice(int i) const override { return at(i) + at(i); }
};

struct Wrong : Stencil {
    __device__ Wrong(const float *x) : Stencil(x) {}
    __device__ float at(int i) const override {
        return x[i - 1];  // FOUND out-of-bounds
    }
};

template <class Other>
__device__ void apply(const float *x, float *y, const Other &other) {
    int i = threadIdx.x;
    Copy copy(x);
    const Stencil *stencil = i % 2 ? (const Stencil *)&copy : (const Stencil *)&other;
    y[i] = stencil->at(i) + stencil->twice(i);
}

extern "C" __global__ void bug(const float *x, float *y) { apply(x, y, Wrong(x)); }

extern "C" __global__ void mended(const float *x, float *y) { apply(x, y, Left(x, 0)); }
