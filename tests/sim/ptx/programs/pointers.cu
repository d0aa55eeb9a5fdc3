// Pointers that one launch stores and the next one uses: to variables, functions, objects, arguments.
__device__ int table[4] = {10, 11, 12, 13};
__device__ int* to_variable;
extern "C" __global__ void store_variable() { to_variable = table; }
extern "C" __global__ void use_variable(int* y) { y[threadIdx.x] = to_variable[threadIdx.x]; }
extern "C" __global__ void use_beyond(int* y) { y[threadIdx.x] = to_variable[threadIdx.x + 1]; }
extern "C" __global__ void race_on_variable(int* y) {
    to_variable[0] = threadIdx.x;
    y[threadIdx.x] = 1;
}

__device__ int twice(int x) { return 2 * x; }
__device__ int thrice(int x) { return 3 * x; }
__device__ int (*to_function)(int);
extern "C" __global__ void store_function(int k) { to_function = k ? twice : thrice; }
extern "C" __global__ void use_function(int* y) { y[threadIdx.x] = to_function(threadIdx.x); }

struct Base {
    __device__ virtual int get(int i) { return i; }
    __device__ virtual ~Base() {}
};
struct Derived : Base {
    int more;
    __device__ Derived(int more) : more(more) {}
    __device__ int get(int i) override { return more + i; }
};
extern "C" __global__ void store_objects(Base** objects) {
    objects[0] = new Base;
    objects[1] = new Derived(100);
}
extern "C" __global__ void use_objects(Base** objects, int* y) {
    y[threadIdx.x] = objects[threadIdx.x & 1]->get(threadIdx.x);
}
extern "C" __global__ void delete_objects(Base** objects) {
    delete objects[0];
    delete objects[1];
}

extern "C" __global__ void store_argument(int** to, int* x) { to[0] = x; }
extern "C" __global__ void use_argument(int** to, int* y) { y[threadIdx.x] = to[0][threadIdx.x]; }
extern "C" __global__ void use_both(int** to, int* x, int* y) { y[threadIdx.x] = to[0][threadIdx.x]; }

__device__ float weights[256];
extern "C" __global__ void fill(int* y) {
    if (blockIdx.x == 0) weights[threadIdx.x] = threadIdx.x;
    y[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}
extern "C" __global__ void reverse(int* y, int too_far) {
    y[blockIdx.x * blockDim.x + threadIdx.x] = weights[255 - threadIdx.x + (blockIdx.x == 40) * too_far];
}

// Pointers that a launch of another module, or a later launch, uses
extern "C" __global__ void export_variable(int** to) { to[0] = table; }
extern "C" __global__ void export_function(int (**to)(int)) { to[0] = twice; }
extern "C" __global__ void call_function(int (**to)(int), int* y) { y[threadIdx.x] = to[0](threadIdx.x); }
extern "C" __global__ void export_shared(int** to) {
    __shared__ int tile[4];
    tile[threadIdx.x] = threadIdx.x;
    if (threadIdx.x == 0) to[0] = tile;
}
