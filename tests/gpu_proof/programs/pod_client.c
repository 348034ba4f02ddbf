/* A program in a pod: says what it sees of the GPUs, takes memory, writes a pattern there, and reads it back while others do the same.
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: gpushare.kubernetes contributors
 *
 * pod_client MIB PATTERN FILE: the answer is in FILE, once for each round, until the program is ended. It knows no header of CUDA.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEP = 64 * 1024 * 1024, MOST_STEPS = 4096 };

static void *library;
static int status;

static void *named(const char *name)
{
    void *function = dlsym(library, name);
    if (function == NULL)
        status = -2;
    return function;
}

#define CALL(name, types, ...)                                    \
    do {                                                          \
        int (*function) types = status ? NULL : (int (*) types)named(name); \
        if (!status)                                              \
            status = function(__VA_ARGS__);                       \
    } while (0)

static void answer(const char *file, int count, const char *uuid, size_t total, size_t held, unsigned rounds, unsigned wrong)
{
    char beside[512];
    snprintf(beside, sizeof beside, "%s.new", file);
    FILE *out = fopen(beside, "w");
    if (out == NULL)
        exit(3);
    const char *index = getenv("ALIYUN_COM_GPU_MEM_IDX"), *units = getenv("ALIYUN_COM_GPU_MEM_CONTAINER");
    fprintf(out, "{\"status\": %d, \"gpus\": %d, \"uuid\": \"%s\", \"total_mib\": %zu, \"held_mib\": %zu, \"rounds\": %u, \"wrong\": %u, "
            "\"index\": \"%s\", \"units\": \"%s\"}\n", status, count, uuid, total >> 20, held >> 20, rounds, wrong,
            index ? index : "", units ? units : "");
    fclose(out);
    rename(beside, file);
}

int main(int argc, char **argv)
{
    static uint64_t parts[MOST_STEPS];
    static unsigned read_back[STEP / sizeof(unsigned)];
    int count = 0, device = 0, part_count = 0;
    char uuid[48] = "";
    unsigned char raw[16] = {0};
    size_t total = 0, unused = 0, wanted = argc > 3 ? strtoul(argv[1], NULL, 10) << 20 : 0;
    unsigned pattern = argc > 3 ? (unsigned)strtoul(argv[2], NULL, 10) : 0, wrong = 0;
    void *context = NULL;

    if (argc <= 3)
        return 2;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL)
        status = -1;
    CALL("cuInit", (unsigned), 0);
    CALL("cuDeviceGetCount", (int *), &count);
    CALL("cuDeviceGet", (int *, int), &device, 0);
    CALL("cuDeviceGetUuid_v2", (unsigned char *, int), raw, device);
    CALL("cuDevicePrimaryCtxRetain", (void **, int), &context, device);
    CALL("cuCtxSetCurrent", (void *), context);
    CALL("cuMemGetInfo_v2", (size_t *, size_t *), &unused, &total);
    for (int i = 0, at = 0; i < 16; i++)
        at += sprintf(uuid + at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", raw[i]);
    while (!status && part_count < MOST_STEPS && (size_t)(part_count + 1) * STEP <= wanted) {
        CALL("cuMemAlloc_v2", (uint64_t *, size_t), &parts[part_count], (size_t)STEP);
        CALL("cuMemsetD32_v2", (uint64_t, unsigned, size_t), parts[part_count], pattern + (unsigned)part_count, STEP / sizeof(unsigned));
        part_count += !status;
    }
    for (unsigned rounds = 0;; rounds++) {
        for (int i = 0; i < part_count && !status; i += 16) {
            CALL("cuMemcpyDtoH_v2", (void *, uint64_t, size_t), read_back, parts[i], (size_t)STEP);
            wrong += read_back[0] != pattern + (unsigned)i || memcmp(read_back, read_back + 1, STEP - sizeof(unsigned)) != 0;
        }
        answer(argv[3], count, uuid, total, (size_t)part_count * STEP, rounds, wrong);
        sleep(1);
    }
}
