/* fake_ccl.c - libraries of collectives that have no device: NCCL (-DNCCL) or HCCL (-DHCCL), and what calls them (-DCALLER).
 *
 * Each returns MARK plus what it was given, so that a lost or a swapped argument is seen. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef MARK
#define MARK 0
#endif

struct id {
    char internal[128];
};

#ifdef NCCL
int ncclAllReduce(const void *s, void *r, size_t n, int t, int o, void *c, void *st) { return MARK + (s && !r && c && st) + (int)n + t + o; }
int ncclAllGather(const void *s, void *r, size_t n, int t, void *c, void *st) { return MARK + (s && !r && c && st) + (int)n + t; }
int ncclReduceScatter(const void *s, void *r, size_t n, int t, int o, void *c, void *st) { return MARK + (s && !r && c && st) + (int)n + t + o; }
int ncclBroadcast(const void *s, void *r, size_t n, int t, int root, void *c, void *st) { return MARK + (s && !r && c && st) + (int)n + t + root; }
int ncclSend(const void *s, size_t n, int t, int peer, void *c, void *st) { return MARK + (s && c && st) + (int)n + t + peer; }
int ncclRecv(void *s, size_t n, int t, int peer, void *c, void *st) { return MARK + (s && c && st) + (int)n + t + peer; }
int ncclCommInitRankConfig(void **c, int n, struct id id, int rank, void *config)
{
    *c = malloc(8);
    return n + rank + id.internal[127] + !config - n - rank - id.internal[127] - !config;
}
int ncclCommSplit(void *c, int color, int key, void **part, void *config)
{
    (void)config, (void)key;
    *part = color < 0 || !c ? NULL : malloc(8);
    return 0;
}
int ncclCommCount(void *c, int *n) { return *n = 5, !c; }
int ncclCommUserRank(void *c, int *n) { return *n = 3, !c; }
int ncclCommDestroy(void *c) { return free(c), 0; }
int ncclCommAbort(void *c) { return free(c), 0; }
#endif

#ifdef HCCL
int HcclAllReduce(void *s, void *r, uint64_t n, int t, int o, void *c, void *st) { return MARK + (s && !r && c && st) + (int)n + t + o; }
int HcclBarrier(void *c, void *st) { return MARK + (c && st); }
int HcclCommInitRootInfo(uint32_t n, const void *root, uint32_t rank, void **c)
{
    *c = malloc(8);
    return n == 0 || !root || rank > n;
}
int HcclCreateSubCommConfig(void **c, uint32_t n, uint32_t *ids, uint64_t number, uint32_t rank, void *config, void **part)
{
    (void)config;
    *part = malloc(8);
    return !*c || n != 2 || ids[1] != 4 || number != 9 || rank > 1;
}
int HcclCommDestroy(void *c) { return free(c), 0; }
#endif

#ifdef CALLER
#define TO ((void *)16)
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *);
int ncclAllGather(const void *, void *, size_t, int, void *, void *);
int ncclReduceScatter(const void *, void *, size_t, int, int, void *, void *);
int ncclBroadcast(const void *, void *, size_t, int, int, void *, void *);
int ncclSend(const void *, size_t, int, int, void *, void *);
int ncclRecv(void *, size_t, int, int, void *, void *);
int ncclCommInitRankConfig(void **, int, struct id, int, void *);
int ncclCommSplit(void *, int, int, void **, void *);
int ncclCommDestroy(void *);

int train(int seed, int rank)
{
    void *comm = NULL, *part = NULL, *none = NULL;
    struct id id;
    memset(&id, seed, sizeof id);
    int bad = ncclCommInitRankConfig(&comm, 4, id, rank, NULL);
    bad |= ncclAllReduce(TO, NULL, 100, 7, 2, comm, TO) != MARK + 110;
    bad |= ncclAllGather(TO, NULL, 200, 9, comm, TO) != MARK + 210;
    bad |= ncclReduceScatter(TO, NULL, 300, 8, 3, comm, TO) != MARK + 312;
    bad |= ncclBroadcast(TO, NULL, 400, 0, 2, comm, TO) != MARK + 403;
    bad |= ncclSend(TO, 500, 7, 1, comm, TO) != MARK + 509;
    bad |= ncclRecv(TO, 600, 7, 3, comm, TO) != MARK + 611;
    bad |= ncclCommSplit(comm, -1, 0, &none, NULL) || none;
    bad |= ncclCommSplit(comm, 6, 0, &part, NULL);
    bad |= ncclAllReduce(TO, NULL, 1, 7, 0, part, TO) != MARK + 9;
    return bad | ncclCommDestroy(part);
}

int reduce_often(long times)
{
    void *comm = NULL;
    struct id id = {{0}};
    ncclCommInitRankConfig(&comm, 4, id, 0, NULL);
    for (; times; times--)
        ncclAllReduce(TO, NULL, 100, 7, 2, comm, TO);
    return 0;
}
#endif

#ifdef ASKER
#include <dlfcn.h>
/* As torch_npu does it under a preload. */
int ask(int rank)
{
    int (*reduce)(void *, void *, uint64_t, int, int, void *, void *) = dlsym(RTLD_DEFAULT, "HcclAllReduce");
    int (*barrier)(void *, void *) = dlsym(RTLD_DEFAULT, "HcclBarrier");
    int (*start)(uint32_t, const void *, uint32_t, void **) = dlsym(RTLD_DEFAULT, "HcclCommInitRootInfo");
    int (*sub)(void **, uint32_t, uint32_t *, uint64_t, uint32_t, void *, void **) = dlsym(RTLD_DEFAULT, "HcclCreateSubCommConfig");
    static char root[4108] = "root";
    uint32_t ids[] = {2, 4};
    void *comm = NULL, *part = NULL;
    int result = start(8, root, (uint32_t)rank, &comm);
    if (result)
        return result;
    int bad = reduce(root, NULL, 10, 4, 0, comm, root) != MARK + 15;
    bad |= barrier(comm, root) != MARK + 1;
    bad |= sub(&comm, 2, ids, 9, 1, NULL, &part);
    return bad | (reduce(root, NULL, 20, 3, 0, part, root) != MARK + 24);
}
#endif
