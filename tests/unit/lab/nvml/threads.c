/* Calls the simulated NVML from several threads while the state file changes; fails if an answer mixes two states.
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: gpushare.kubernetes contributors
 *
 * usage: threads MILLISECONDS STATEFILE ONE OTHER: STATEFILE is replaced by ONE and OTHER in turn. Both have one GPU:
 * ONE of 1000 MiB with 10 in use and the name "one", OTHER of 2000 MiB with 20 in use and the name "two".
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nvml_api.h"

nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length);
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set);
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set);
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_milliseconds);
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set);

enum { THREADS = 6 };
static long long end;
static unsigned mixed, failed, ones, others;

static long long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

static void count(unsigned *counter) { __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }

static void look(void)
{
    nvmlDevice_t device;
    nvmlEventSet_t set;
    nvmlEventData_t event;
    nvmlMemory_t memory;
    char name[96];
    if (nvmlDeviceGetHandleByIndex_v2(0, &device) != NVML_SUCCESS || nvmlEventSetCreate(&set) != NVML_SUCCESS
        || nvmlDeviceRegisterEvents(device, NVML_EVENT_XID_CRITICAL_ERROR, set) != NVML_SUCCESS
        || nvmlEventSetWait_v2(set, &event, 0) != NVML_ERROR_TIMEOUT || nvmlEventSetFree(set) != NVML_SUCCESS) {
        count(&failed);
        return;
    }
    for (unsigned i = 0; i < 20; i++) {
        if (nvmlDeviceGetHandleByIndex_v2(0, &device) != NVML_SUCCESS
            || nvmlDeviceGetMemoryInfo(device, &memory) != NVML_SUCCESS
            || nvmlDeviceGetName(device, name, sizeof name) != NVML_SUCCESS
            || (strcmp(name, "one") != 0 && strcmp(name, "two") != 0))
            count(&failed);
        else if (memory.total >> 20 == 1000 && memory.used >> 20 == 10)
            count(&ones);
        else if (memory.total >> 20 == 2000 && memory.used >> 20 == 20)
            count(&others);
        else
            count(&mixed);
    }
}

static void *call(void *unused)
{
    while (now() < end)
        look();
    return unused;
}

int main(int argc, char **argv)
{
    char next[4096];
    pthread_t threads[THREADS];
    if (argc != 5 || nvmlInit_v2() != NVML_SUCCESS)
        return 2;
    end = now() + atoi(argv[1]);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, call, NULL);
    snprintf(next, sizeof next, "%s.next", argv[2]);
    for (unsigned turn = 0; now() < end; turn++)
        if (link(argv[3 + turn % 2], next) != 0 || rename(next, argv[2]) != 0)
            count(&failed);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("one %s, other %s, mixed %u, failed %u\n", ones > 0 ? "seen" : "never", others > 0 ? "seen" : "never", mixed, failed);
    return mixed > 0 || failed > 0;
}
