/* Calls about what a GPU is: names, numbers, PCI address, modes.
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: gpushare.kubernetes contributors
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "answer.h"

/* Where the service of an MPS control daemon may write, and everybody may read. */
#define DEFAULT_MODES_FILE "/run/gpushare-mps/lab.modes"

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) { return state_index(device, index); }

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
    GPU_OR_RETURN(device);
    return answer_text(gpu.name, name, length);
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    GPU_OR_RETURN(device);
    return answer_text(gpu.uuid, uuid, length);
}

API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length)
{
    GPU_OR_RETURN(device);
    return gpu.serial[0] == '\0' ? NVML_ERROR_NOT_SUPPORTED : answer_text(gpu.serial, serial, length);
}

API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor)
{
    WHOLE_GPU_OR_RETURN(device);
    CHECK_ARGUMENT(minor != NULL);
    *minor = gpu.minor;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned length)
{
    GPU_OR_RETURN(device);
    return answer_text("90.04.38.00.03", version, length);
}

API nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, unsigned *brand)
{
    enum { TESLA = 2, NVIDIA = 14 };
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(brand != NULL);
    *brand = strncmp(gpu.name, "Tesla", 5) == 0 ? TESLA : NVIDIA;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned *architecture)
{
    enum { KEPLER = 2, MAXWELL, PASCAL, VOLTA, TURING, AMPERE, ADA, HOPPER, BLACKWELL };
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(architecture != NULL);
    unsigned cc = gpu.cc_major * 10 + gpu.cc_minor;
    *architecture = cc >= 100 ? BLACKWELL : cc >= 90 ? HOPPER : cc >= 89 ? ADA : cc >= 80 ? AMPERE : cc >= 75 ? TURING
                  : cc >= 70 ? VOLTA : cc >= 60 ? PASCAL : cc >= 50 ? MAXWELL : KEPLER;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(major != NULL && minor != NULL);
    *major = (int)gpu.cc_major;
    *minor = (int)gpu.cc_minor;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned *mode)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(mode != NULL);
    *mode = gpu.persistence_mode;
    return NVML_SUCCESS;
}

/* Modes that somebody has set: the state file is the lab's, and read-only here. A line for each GPU; the last one counts. */
static const char *modes_file(void)
{
    const char *path = getenv("GPUSHARE_LAB_NVML_MODES");
    return path != NULL && *path != '\0' ? path : DEFAULT_MODES_FILE;
}

API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(mode != NULL);
    *mode = gpu.compute_mode;
    FILE *file = fopen(modes_file(), "re");
    if (file == NULL)
        return NVML_SUCCESS;
    char uuid[96];
    unsigned found;
    while (fscanf(file, "%95s %u", uuid, &found) == 2)
        if (strcmp(uuid, gpu.uuid) == 0)
            *mode = found;
    fclose(file);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned mode)
{
    WHOLE_GPU_OR_RETURN(device);
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    if (mode > 3 || mode == 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    FILE *file = fopen(modes_file(), "ae");
    if (file == NULL)
        return NVML_ERROR_UNKNOWN;
    int written = fprintf(file, "%s %u\n", gpu.uuid, mode);
    return fclose(file) == 0 && written > 0 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

API nvmlReturn_t nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned *multiple)
{
    return answer_number(device, multiple, 0);
}

API nvmlReturn_t nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned *id)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(id != NULL);
    *id = gpu.pci_bus << 8;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, unsigned *mode) { return answer_number(device, mode, 0); }
API nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, unsigned *on) { return answer_number(device, on, 0); }
API nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned *mode) { return answer_number(device, mode, 0); }

static void pci_bus_id(const struct gpu *gpu, const char *format, char *out, size_t size)
{
    snprintf(out, size, format, gpu->pci_domain, gpu->pci_bus, gpu->pci_device);
}

#define SHORT_BUS_ID "%04X:%02X:%02X.0"
#define LONG_BUS_ID "%08X:%02X:%02X.0"

API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_v1_t *pci)
{
    WHOLE_GPU_OR_RETURN(device);
    CHECK_ARGUMENT(pci != NULL);
    *pci = (nvmlPciInfo_v1_t){.domain = gpu.pci_domain, .bus = gpu.pci_bus, .device = gpu.pci_device,
                              .pciDeviceId = gpu.pci_device_id};
    pci_bus_id(&gpu, SHORT_BUS_ID, pci->busId, sizeof pci->busId);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *pci)
{
    WHOLE_GPU_OR_RETURN(device);
    CHECK_ARGUMENT(pci != NULL);
    *pci = (nvmlPciInfo_v2_t){.domain = gpu.pci_domain, .bus = gpu.pci_bus, .device = gpu.pci_device,
                              .pciDeviceId = gpu.pci_device_id, .pciSubSystemId = gpu.pci_subsystem_id};
    pci_bus_id(&gpu, SHORT_BUS_ID, pci->busId, sizeof pci->busId);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    WHOLE_GPU_OR_RETURN(device);
    CHECK_ARGUMENT(pci != NULL);
    *pci = (nvmlPciInfo_t){.domain = gpu.pci_domain, .bus = gpu.pci_bus, .device = gpu.pci_device,
                           .pciDeviceId = gpu.pci_device_id, .pciSubSystemId = gpu.pci_subsystem_id};
    pci_bus_id(&gpu, SHORT_BUS_ID, pci->busIdLegacy, sizeof pci->busIdLegacy);
    pci_bus_id(&gpu, LONG_BUS_ID, pci->busId, sizeof pci->busId);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_v1_t *pci)
{
    WHOLE_GPU_OR_RETURN(device);
    CHECK_ARGUMENT(pci != NULL);
    if (pci->version != STRUCT_VERSION(nvmlPciInfoExt_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    *pci = (nvmlPciInfoExt_v1_t){.version = pci->version, .domain = gpu.pci_domain, .bus = gpu.pci_bus,
                                 .device = gpu.pci_device, .pciDeviceId = gpu.pci_device_id,
                                 .pciSubSystemId = gpu.pci_subsystem_id, .baseClass = 3, .subClass = 2};
    pci_bus_id(&gpu, LONG_BUS_ID, pci->busId, sizeof pci->busId);
    return NVML_SUCCESS;
}
