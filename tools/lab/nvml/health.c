/* Calls about a GPU's memory errors: none has happened, none is pending. Broken GPUs are shown by XID or as lost. None has NVSwitches.
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: gpushare.kubernetes contributors
 */
#include "answer.h"

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(current != NULL && pending != NULL);
    *current = *pending = 1;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, unsigned *mode) { return answer_number(device, mode, 1); }

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned error, unsigned counter, unsigned long long *count)
{
    (void)error, (void)counter;
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(count != NULL);
    *count = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned error, unsigned counter, unsigned location,
                                                 unsigned long long *count)
{
    (void)location;
    return nvmlDeviceGetTotalEccErrors(device, error, counter, count);
}

API nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, unsigned error, unsigned counter,
                                                nvmlEccErrorCounts_t *counts)
{
    (void)error, (void)counter;
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(counts != NULL);
    *counts = (nvmlEccErrorCounts_t){0};
    return NVML_SUCCESS;
}

/* Row remapping came with Ampere and took the place of page retirement. */
API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *correctable, unsigned *uncorrectable,
                                           unsigned *pending, unsigned *failed)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(correctable != NULL && uncorrectable != NULL && pending != NULL && failed != NULL);
    if (gpu.cc_major < 8)
        return NVML_ERROR_NOT_SUPPORTED;
    *correctable = *uncorrectable = *pending = *failed = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(values != NULL);
    if (gpu.cc_major < 8)
        return NVML_ERROR_NOT_SUPPORTED;
    *values = (nvmlRowRemapperHistogramValues_t){.max = 512};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned cause, unsigned *count, unsigned long long *pages)
{
    (void)cause, (void)pages;
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(count != NULL);
    if (gpu.cc_major >= 8)
        return NVML_ERROR_NOT_SUPPORTED;
    *count = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, unsigned cause, unsigned *count,
                                              unsigned long long *pages, unsigned long long *times)
{
    (void)times;
    return nvmlDeviceGetRetiredPages(device, cause, count, pages);
}

API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned *pending)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(pending != NULL);
    if (gpu.cc_major >= 8)
        return NVML_ERROR_NOT_SUPPORTED;
    *pending = 0;
    return NVML_SUCCESS;
}

/* Hopper and later answer, also without NVSwitches, through the caller's pointer. */
API nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
    WHOLE_GPU_OR_RETURN(device);
    CHECK_ARGUMENT(info != NULL);
    if (gpu.cc_major < 9)
        return NVML_ERROR_NOT_SUPPORTED;
    memset(info->clusterUuid, 0, sizeof info->clusterUuid);
    info->status = NVML_SUCCESS;
    info->cliqueId = 0;
    info->state = NVML_GPU_FABRIC_STATE_NOT_SUPPORTED;
    return NVML_SUCCESS;
}
