// Copies of structures with padding. With `omit` != 0, one member or element is never written.
struct Pair { char a; int b; };       // 3 bytes of padding
struct Wide { int a; double b; };     // 4 bytes
struct Small { char a; short b; char c; };
struct Nested { Small x; char y; };

extern "C" __global__ void in_global(Pair *source, Pair *out, int omit)
{
    int i = threadIdx.x;
    source[i].a = i;
    if (!(omit && i == 5))
        source[i].b = 2 * i;
    __syncthreads();
    out[i] = source[i ^ 1];
}

extern "C" __global__ void in_shared(Pair *out, int omit)
{
    __shared__ Pair s[32], t[32];
    int i = threadIdx.x;
    s[i].a = i;
    if (!(omit && i == 5))
        s[i].b = 2 * i;
    __syncthreads();
    t[i] = s[i ^ 1];
    __syncthreads();
    out[i].a = t[i ^ 1].a;
    out[i].b = t[i ^ 1].b;
}

extern "C" __global__ void in_vectors(Wide *out, int omit)
{
    __shared__ Wide s[32];
    int i = threadIdx.x;
    s[i].a = i;
    if (!(omit && i == 5))
        s[i].b = 2 * i;
    __syncthreads();
    out[i] = s[i ^ 1];
}

extern "C" __global__ void in_bytes(Nested *out, int omit)
{
    __shared__ Nested s[32];
    int i = threadIdx.x;
    s[i].x.a = i;
    if (!(omit && i == 5))
        s[i].x.b = 2 * i;
    s[i].x.c = 3;
    s[i].y = 1;
    __syncthreads();
    for (int k = 0; k < 2; k++) {
        Nested copied = s[(i + k) & 31];
        if (copied.y)
            out[i] = copied;
    }
}

extern "C" __global__ void in_heap(Pair *out, int omit)
{
    Pair *s = (Pair *)malloc(sizeof(Pair) * 8);
    int i = threadIdx.x;
    for (int j = 0; j < 4; j++) {
        s[j].a = i;
        if (!(omit && j == 2))
            s[j].b = 2 * i;
    }
    s[4 + (i & 3)] = s[i & 3];
    __threadfence_block();
    out[i].a = s[4 + (i & 3)].a;
    out[i].b = s[4 + (i & 3)].b;
    free(s);
}

extern "C" __global__ void in_local(Pair *out, int omit)
{
    Pair s[8];
    int i = threadIdx.x;
    for (int j = 0; j < 8; j++) {
        s[(j + omit) & 7].a = i;
        if (!(omit && j == 5))
            s[(j + omit) & 7].b = 2 * i;
    }
    out[i] = s[i & 7];
}

// The kernel computes with `tag`, which the compiler loads together with the padding behind it.
struct alignas(16) Tagged { int id; float weight; char tag; };

extern "C" __global__ void in_tagged(Tagged *out, int omit)
{
    __shared__ Tagged s[32];
    int i = threadIdx.x;
    s[i].id = i;
    s[i].weight = 1;
    if (!(omit && i == 5))
        s[i].tag = 2 * i;
    __syncthreads();
    Tagged copied = s[i ^ 1];
    out[i] = copied;
    out[i].tag = copied.tag + 1;
}

// With omit == 1, both components of an element are unwritten, with omit == 2 only one.
extern "C" __global__ void elements(int2 *out, int omit)
{
    __shared__ int2 s[32];
    int i = threadIdx.x;
    if (!(omit == 1 && i == 5))
        s[i].x = i;
    if (!(omit && i == 5))
        s[i].y = 2 * i;
    __syncthreads();
    out[i] = s[i ^ 1];
}

extern "C" __global__ void bytes(char *out, int omit)
{
    __shared__ char s[32];
    int i = threadIdx.x;
    if (!(omit && i == 5))
        s[i] = 2 * i;
    __syncthreads();
    out[i] = s[i ^ 1];
}
