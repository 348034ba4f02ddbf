/* Calls about the library, the driver and the machine as a whole.
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: gpushare.kubernetes contributors
 */
#include "answer.h"

/* NVML's own version is CUDA's major version and the driver version of the library file. */
#define NVML_VERSION "12." LIBRARY_VERSION

API nvmlReturn_t nvmlInit_v2(void) { return state_init(); }
API nvmlReturn_t nvmlInit(void) { return state_init(); }
API nvmlReturn_t nvmlInitWithFlags(unsigned flags) { (void)flags; return state_init(); }
API nvmlReturn_t nvmlShutdown(void) { return state_shutdown(); }

API const char *nvmlErrorString(nvmlReturn_t result)
{
    static const char *const texts[] = {
        [NVML_SUCCESS] = "Success",
        [NVML_ERROR_UNINITIALIZED] = "Uninitialized",
        [NVML_ERROR_INVALID_ARGUMENT] = "Invalid Argument",
        [NVML_ERROR_NOT_SUPPORTED] = "Not Supported",
        [NVML_ERROR_NO_PERMISSION] = "Insufficient Permissions",
        [NVML_ERROR_ALREADY_INITIALIZED] = "Already Initialized",
        [NVML_ERROR_NOT_FOUND] = "Not Found",
        [NVML_ERROR_INSUFFICIENT_SIZE] = "Insufficient Size",
        [NVML_ERROR_INSUFFICIENT_POWER] = "Insufficient External Power",
        [NVML_ERROR_DRIVER_NOT_LOADED] = "Driver Not Loaded",
        [NVML_ERROR_TIMEOUT] = "Timeout",
        [NVML_ERROR_IRQ_ISSUE] = "Interrupt Request Issue",
        [NVML_ERROR_LIBRARY_NOT_FOUND] = "NVML Shared Library Not Found",
        [NVML_ERROR_FUNCTION_NOT_FOUND] = "Function Not Found",
        [NVML_ERROR_CORRUPTED_INFOROM] = "Corrupted infoROM",
        [NVML_ERROR_GPU_IS_LOST] = "GPU is lost",
        [NVML_ERROR_RESET_REQUIRED] = "GPU requires reset",
        [NVML_ERROR_OPERATING_SYSTEM] = "GPU access blocked by the operating system",
        [NVML_ERROR_LIB_RM_VERSION_MISMATCH] = "Driver/library version mismatch",
        [NVML_ERROR_IN_USE] = "In use by another client",
        [NVML_ERROR_MEMORY] = "Insufficient Memory",
        [NVML_ERROR_NO_DATA] = "No data",
        [NVML_ERROR_VGPU_ECC_NOT_SUPPORTED] = "ECC is not supported by vGPU",
        [NVML_ERROR_INSUFFICIENT_RESOURCES] = "Insufficient resources",
        [NVML_ERROR_FREQ_NOT_SUPPORTED] = "Frequency not supported",
        [NVML_ERROR_ARGUMENT_VERSION_MISMATCH] = "Argument version mismatch",
        [NVML_ERROR_DEPRECATED] = "Deprecated",
        [NVML_ERROR_NOT_READY] = "Not ready",
        [NVML_ERROR_GPU_NOT_FOUND] = "GPU not found",
        [NVML_ERROR_INVALID_STATE] = "Invalid state",
    };
    return (unsigned)result < sizeof texts / sizeof *texts ? texts[result] : "Unknown Error";
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    struct driver driver;
    nvmlReturn_t answer = state_driver(&driver);
    return answer == NVML_SUCCESS ? answer_text(driver.version, version, length) : answer;
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    return answer_text(NVML_VERSION, version, length);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    struct driver driver;
    nvmlReturn_t answer = state_driver(&driver);
    CHECK_ARGUMENT(version != NULL);
    *version = (int)driver.cuda_version;
    return answer;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

/* The name of a process of this machine, as its own command line has it. */
API nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    char path[64], text[1024];
    CHECK_ARGUMENT(name != NULL && length > 0);
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return NVML_ERROR_NOT_FOUND;
    size_t read = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[read] = '\0';
    snprintf(name, length, "%s", text);
    return NVML_SUCCESS;
}

static nvmlReturn_t none_of(unsigned *count)
{
    CHECK_ARGUMENT(count != NULL);
    *count = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetHicVersion(unsigned *count, void *entries) { (void)entries; return none_of(count); }
API nvmlReturn_t nvmlUnitGetCount(unsigned *count) { return none_of(count); }
API nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned *count) { return none_of(count); }
API nvmlReturn_t nvmlGetBlacklistDeviceCount(unsigned *count) { return none_of(count); }

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) { return state_count(count); }
API nvmlReturn_t nvmlDeviceGetCount(unsigned *count) { return state_count(count); }

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    return state_find(BY_INDEX, index, NULL, device);
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    return state_find(BY_INDEX, index, NULL, device);
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    return state_find(BY_UUID, 0, uuid, device);
}

API nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    return state_find(BY_SERIAL, 0, serial, device);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    return state_find(BY_PCI, 0, bus_id, device);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    return state_find(BY_PCI, 0, bus_id, device);
}
