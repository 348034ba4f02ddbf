/* Calls about a GPU's memory and the processes that hold it.
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: gpushare.kubernetes contributors
 */
#include "answer.h"

static unsigned long long used_mib(const struct gpu *gpu)
{
    unsigned long long used = gpu->used_mib;
    for (unsigned i = 0; i < gpu->process_count; i++)
        used += gpu->processes[i].memory_mib;
    return used;
}

/* The first form counts what the driver reserves as used. */
API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(memory != NULL);
    memory->total = gpu.memory_mib * MIB;
    memory->used = (used_mib(&gpu) + gpu.reserved_mib) * MIB;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(memory != NULL);
    if (memory->version != STRUCT_VERSION(nvmlMemory_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = gpu.memory_mib * MIB;
    memory->reserved = gpu.reserved_mib * MIB;
    memory->used = used_mib(&gpu) * MIB;
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(memory != NULL);
    memory->bar1Total = 256 * MIB;
    memory->bar1Used = 2 * MIB;
    memory->bar1Free = memory->bar1Total - memory->bar1Used;
    return NVML_SUCCESS;
}

/* A list call's count comes in as capacity and goes out as the number there is. On success the list may be filled. */
static nvmlReturn_t room_for(unsigned number, unsigned *count, const void *list)
{
    CHECK_ARGUMENT(count != NULL);
    unsigned capacity = *count;
    *count = number;
    if (number > capacity)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    return number > 0 && list == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *list)
{
    GPU_OR_RETURN(device);
    nvmlReturn_t answer = room_for(gpu.process_count, count, list);
    for (unsigned i = 0; answer == NVML_SUCCESS && i < gpu.process_count; i++)
        list[i] = (nvmlProcessInfo_v1_t){gpu.processes[i].pid, gpu.processes[i].memory_mib * MIB};
    return answer;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *list)
{
    GPU_OR_RETURN(device);
    nvmlReturn_t answer = room_for(gpu.process_count, count, list);
    for (unsigned i = 0; answer == NVML_SUCCESS && i < gpu.process_count; i++)
        list[i] = (nvmlProcessInfo_v2_t){gpu.processes[i].pid, gpu.processes[i].memory_mib * MIB,
                                         gpu.processes[i].gpu_instance, gpu.processes[i].compute_instance};
    return answer;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *list)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, list);
}

API nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list)
{
    enum { COMPUTE = 0 };
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(list != NULL);
    if (list->version != STRUCT_VERSION(nvmlProcessDetailList_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    unsigned number = list->mode == COMPUTE ? gpu.process_count : 0;
    nvmlReturn_t answer = room_for(number, &list->numProcArrayEntries, list->procArray);
    for (unsigned i = 0; answer == NVML_SUCCESS && i < number; i++)
        list->procArray[i] = (nvmlProcessDetail_v1_t){gpu.processes[i].pid, gpu.processes[i].memory_mib * MIB,
                                                      gpu.processes[i].gpu_instance, gpu.processes[i].compute_instance,
                                                      NOT_AVAILABLE_64};
    return answer;
}

/* No display and, as long as no MPS daemon is simulated, no MPS clients: empty lists. */
static nvmlReturn_t empty(nvmlDevice_t device, unsigned *count) { return answer_number(device, count, 0); }

#define EMPTY_LIST(name) \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned *count, void *list) { (void)list; return empty(device, count); }

EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3)
