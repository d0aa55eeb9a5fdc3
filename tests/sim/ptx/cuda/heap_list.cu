// Each thread builds a list of its numbers, adds them up, and frees the list.
struct Node { int value; Node* next; };

__device__ Node* list(const int* x, int n) {
    Node* head = nullptr;
    for (int i = 0; i < n; ++i) {
        Node* node = (Node*)malloc(sizeof(Node));
        node->value = x[i];
        node->next = head;
        head = node;
    }
    return head;
}

extern "C" __global__ void bug(const int* x, int* sums) {
    int sum = 0;
    for (Node* node = list(x + 4 * threadIdx.x, 4); node != nullptr; node = node->next) {  // FOUND use-after-free
        sum += node->value;
        free(node);  // FOUND use-after-free
    }
    sums[threadIdx.x] = sum;
}

extern "C" __global__ void mended(const int* x, int* sums) {
    int sum = 0;
    for (Node* node = list(x + 4 * threadIdx.x, 4); node != nullptr;) {
        Node* next = node->next;
        sum += node->value;
        free(node);
        node = next;
    }
    sums[threadIdx.x] = sum;
}
