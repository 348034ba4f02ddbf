/* The private table of calls that NVIDIA's own nvidia-smi asks the library for (seen with 535 and 580).
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: gpushare.kubernetes contributors
 *
 * Only what was observed from outside is here: which entry is called with which arguments, and what it must write.
 */
#include "answer.h"

enum { ENTRIES = 256, SIZE_IN_ENTRY_0 = 0x1000 };
enum { HANDLE_BY_INDEX = 81, FIELD_VALUES = 165, PROCESSES_FIRST = 213, PROCESSES_LAST = 215, HOST_PCIE_GENERATION = 230 };

/* What the process entries fill, 4128 bytes each. */
struct table_process {
    unsigned pid;
    unsigned long long memory_bytes;
    unsigned gpu_instance, compute_instance;
    unsigned long long reserved;
    char name[4096];
};

_Static_assert(sizeof(struct table_process) == 4128, "nvidia-smi steps through the list by 4128 bytes");

typedef void (*entry)(void);

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values);

static nvmlReturn_t handle_by_index(unsigned index, nvmlDevice_t *device, unsigned flags)
{
    (void)flags;
    return state_find(BY_INDEX, index, NULL, device);
}

static nvmlReturn_t processes(nvmlDevice_t device, unsigned *count, struct table_process *list)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(count != NULL);
    unsigned capacity = *count;
    *count = gpu.process_count;
    if (gpu.process_count > capacity)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    CHECK_ARGUMENT(list != NULL || gpu.process_count == 0);
    for (unsigned i = 0; i < gpu.process_count; i++) {
        list[i] = (struct table_process){.pid = gpu.processes[i].pid, .memory_bytes = gpu.processes[i].memory_mib * MIB,
                                         .gpu_instance = gpu.processes[i].gpu_instance,
                                         .compute_instance = gpu.processes[i].compute_instance};
        strcpy(list[i].name, gpu.processes[i].name);
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t no_processes(nvmlDevice_t device, unsigned *count, struct table_process *list)
{
    (void)list;
    return answer_number(device, count, 0);
}

static nvmlReturn_t host_pcie_generation(nvmlDevice_t device, unsigned *generation)
{
    return answer_number(device, generation, 3);
}

/* Any other entry: called with a GPU and then a place for its result, it writes 0 there. What is no GPU's handle and
 * lies above 4 GiB is such a place (they are on the stack); less is a number. */
static nvmlReturn_t other(const void *first, unsigned *second)
{
    if (state_is_device(first) && !state_is_device(second) && (uintptr_t)second > UINT32_MAX)
        *second = 0;
    return NVML_SUCCESS;
}

static entry table[ENTRIES];

static __attribute__((constructor)) void fill(void)
{
    table[0] = (entry)(uintptr_t)SIZE_IN_ENTRY_0;
    for (unsigned i = 1; i < ENTRIES; i++)
        table[i] = (entry)other;
    table[HANDLE_BY_INDEX] = (entry)handle_by_index;
    table[PROCESSES_FIRST] = (entry)processes;
    for (unsigned i = PROCESSES_FIRST + 1; i <= PROCESSES_LAST; i++)
        table[i] = (entry)no_processes;
    table[FIELD_VALUES] = (entry)nvmlDeviceGetFieldValues;
    table[HOST_PCIE_GENERATION] = (entry)host_pcie_generation;
}

API nvmlReturn_t nvmlInternalGetExportTable(const void **out, const unsigned char guid[16])
{
    static const unsigned char smi[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                          0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
    CHECK_ARGUMENT(out != NULL && guid != NULL);
    if (memcmp(guid, smi, sizeof smi) != 0)
        return NVML_ERROR_NOT_FOUND;
    *out = table;
    return NVML_SUCCESS;
}
