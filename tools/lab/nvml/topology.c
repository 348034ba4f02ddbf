/* Calls about where a GPU sits: NUMA node, processors near it, the way to other GPUs by PCIe and NVLinks.
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: gpushare.kubernetes contributors
 */
#define _POSIX_C_SOURCE 200809L
#include "answer.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
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

/* The level at which the ways of two GPUs of one NUMA node meet. */
static unsigned meeting(const char *first, const char *second)
{
    const char *one = strchr(first, '.'), *other = strchr(second, '.');
    if (one == NULL || other == NULL || one - first != other - second || strncmp(first, second, (size_t)(one - first)) != 0)
        return NVML_TOPOLOGY_NODE;
    return strcmp(one, other) == 0 ? NVML_TOPOLOGY_SINGLE : NVML_TOPOLOGY_HOSTBRIDGE;
}

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second, unsigned *level)
{
    struct gpu other;
    GPU_OR_RETURN(first);
    CHECK_ARGUMENT(level != NULL);
    nvmlReturn_t answer = state_gpu(second, &other);
    if (answer == NVML_SUCCESS)
        *level = strcmp(gpu.uuid, other.uuid) == 0 ? NVML_TOPOLOGY_INTERNAL
               : gpu.numa_node == other.numa_node  ? meeting(gpu.pcie, other.pcie)
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

/* Where NVLink number `link` of a GPU leads to: the bus of a GPU, or NVSWITCH. A GPU without NVLinks does not know the question. */
#define NVSWITCH UINT_MAX

static nvmlReturn_t remote_end(const struct gpu *gpu, unsigned link, unsigned *bus)
{
    char text[TEXT];
    strcpy(text, gpu->nvlinks);
    if (text[0] == '\0' || strcmp(text, "none") == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    for (char *rest, *part = strtok_r(text, " ", &rest); part != NULL; part = strtok_r(NULL, " ", &rest)) {
        unsigned count;
        if (sscanf(part, "switch:%u", &count) == 1)
            *bus = NVSWITCH;
        else if (sscanf(part, "%x:%u", bus, &count) != 2)
            return NVML_ERROR_UNKNOWN;
        if (link < count)
            return NVML_SUCCESS;
        link -= count;
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active)
{
    unsigned bus;
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(active != NULL);
    *active = 1;
    return remote_end(&gpu, link, &bus);
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, unsigned *type)
{
    enum { GPU = 0, SWITCH = 2 };
    unsigned bus = 0;
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(type != NULL);
    nvmlReturn_t answer = remote_end(&gpu, link, &bus);
    *type = bus == NVSWITCH ? SWITCH : GPU;
    return answer;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci)
{
    enum { BUS_OF_SWITCHES = 0xC1 };
    unsigned bus = 0;
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(pci != NULL);
    nvmlReturn_t answer = remote_end(&gpu, link, &bus);
    if (answer != NVML_SUCCESS)
        return answer;
    *pci = (nvmlPciInfo_t){.domain = 0, .bus = bus == NVSWITCH ? BUS_OF_SWITCHES : bus, .device = 0};
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus & 0xFF);
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus & 0xFF);
    return NVML_SUCCESS;
}
