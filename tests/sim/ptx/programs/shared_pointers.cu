// Pointers to shared memory that are stored in global memory.
__device__ int done;

// With `foreign`, block 1 reads through the pointer of block 0, otherwise through its own.
extern "C" __global__ void publish(int **place, int *out, int foreign)
{
    __shared__ int s[32];
    int i = threadIdx.x;
    s[i] = i + 100 * blockIdx.x;
    __syncthreads();
    if (i == 0) {
        ((int *volatile *)place)[blockIdx.x] = s;
        __threadfence();
        atomicAdd(&done, 1);
        while (atomicAdd(&done, 0) < 2) ;
        __threadfence();
    }
    __syncthreads();
    if (blockIdx.x == 1)
        out[i] = (((int *volatile *)place)[1 - foreign])[i];
}

extern "C" __global__ void later_launch(int **place, int *out)
{
    __shared__ int s[32];
    int i = threadIdx.x;
    s[i] = i;
    __syncthreads();
    out[i] = s[i ^ 1] + place[0][i];
}

struct Node { int value; Node *next; };

extern "C" __global__ void list(int *out)
{
    __shared__ Node nodes[32];
    int i = threadIdx.x, total = 0;
    nodes[i].value = i;
    nodes[i].next = &nodes[(i + 1) & 31];
    __syncthreads();
    Node *current = nodes + i;
    for (int k = 0; k < 4; k++, current = current->next)
        total += current->value;
    out[i] = total;
}

__device__ __noinline__ int sum(int *first)
{
    int total = 0;
    for (int k = 0; k < 8; k++)
        total += first[k];
    return total;
}

extern "C" __global__ void passed(int *out)
{
    __shared__ int s[32];
    int i = threadIdx.x;
    s[i] = i;
    __syncthreads();
    out[i] = sum(i & 1 ? s : s + 8);
}
