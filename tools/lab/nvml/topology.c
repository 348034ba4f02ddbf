/* Calls about where a GPU sits: NUMA node, processors near it, the way to other GPUs (PCIe only, no NVLink).
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: gpushare.kubernetes contributors
 */
#define _POSIX_C_SOURCE 200809L
#include "answer.h"

#include <limits.h>
#include <unistd.h>

enum { BITS = sizeof(unsigned long) * CHAR_BIT };

static void set_bit(unsigned bit, unsigned size, unsigned long *set)
{
    if (bit / BITS < size)
        set[bit / BITS] |= 1UL << bit % BITS;
}

API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned size, unsigned long *nodes, unsigned scope)
{
    (void)scope;
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(size > 0 && nodes != NULL);
    if (gpu.numa_node < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    memset(nodes, 0, size * sizeof *nodes);
    set_bit((unsigned)gpu.numa_node, size, nodes);
    return NVML_SUCCESS;
}

/* All processors: the lab's machines have one socket. */
API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned size, unsigned long *processors)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(size > 0 && processors != NULL);
    memset(processors, 0, size * sizeof *processors);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    for (long cpu = 0; cpu < online; cpu++)
        set_bit((unsigned)cpu, size, processors);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned size, unsigned long *processors,
                                                     unsigned scope)
{
    (void)scope;
    return nvmlDeviceGetCpuAffinity(device, size, processors);
}

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second, unsigned *level)
{
    struct gpu other;
    GPU_OR_RETURN(first);
    CHECK_ARGUMENT(level != NULL);
    nvmlReturn_t answer = state_gpu(second, &other);
    if (answer == NVML_SUCCESS)
        *level = strcmp(gpu.uuid, other.uuid) == 0 ? NVML_TOPOLOGY_INTERNAL
               : gpu.numa_node == other.numa_node  ? NVML_TOPOLOGY_NODE
                                                    : NVML_TOPOLOGY_SYSTEM;
    return answer;
}

/* GPUs at exactly this level from the device; the count comes in as capacity. */
API nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned level, unsigned *count, nvmlDevice_t *list)
{
    unsigned gpus, found = 0;
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(count != NULL && (list != NULL || *count == 0));
    nvmlReturn_t answer = state_count(&gpus);
    for (unsigned i = 0; answer == NVML_SUCCESS && i < gpus; i++) {
        nvmlDevice_t other;
        unsigned other_level;
        if (state_find(BY_INDEX, i, NULL, &other) != NVML_SUCCESS || other == device
            || nvmlDeviceGetTopologyCommonAncestor(device, other, &other_level) != NVML_SUCCESS || other_level != level)
            continue;
        if (found < *count)
            list[found] = other;
        found++;
    }
    if (answer == NVML_SUCCESS)
        *count = list == NULL || found < *count ? found : *count;
    return answer;
}

API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t first, nvmlDevice_t second, unsigned capability, unsigned *status)
{
    enum { OK = 0, CHIPSET_NOT_SUPPORTED = 1 };
    unsigned level;
    (void)capability;
    CHECK_ARGUMENT(status != NULL);
    nvmlReturn_t answer = nvmlDeviceGetTopologyCommonAncestor(first, second, &level);
    if (answer == NVML_SUCCESS)
        *status = level < NVML_TOPOLOGY_SYSTEM ? OK : CHIPSET_NOT_SUPPORTED;
    return answer;
}

API nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t first, nvmlDevice_t second, int *same)
{
    unsigned level;
    CHECK_ARGUMENT(same != NULL);
    nvmlReturn_t answer = nvmlDeviceGetTopologyCommonAncestor(first, second, &level);
    if (answer == NVML_SUCCESS)
        *same = level == NVML_TOPOLOGY_INTERNAL;
    return answer;
}
