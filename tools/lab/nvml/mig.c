/* Calls about MIG: the instances of a GPU, and what nvidia-ctk asks to name their profiles. Instances come and go with the state file.
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: gpushare.kubernetes contributors
 */
#define _POSIX_C_SOURCE 200809L
#include "answer.h"

#include <pthread.h>

enum { MOST_INSTANCES = 7, FIRST_SLICES = 7 };

/* NVML's profiles 0 to 6, of GPU and compute instances alike: their slices, and the ids of A100 and H100. */
static const struct { unsigned slices, gpu_profile, compute_profile, multiprocessors; } profiles[FIRST_SLICES] = {
    {1, 19, 0, 14}, {2, 14, 1, 28}, {3, 9, 2, 42}, {4, 5, 3, 56}, {7, 0, 4, 98}, {8, 99, 99, 0}, {6, 99, 99, 0},
};

/* A handle of a GPU instance, or of one of its compute instances. */
struct part {
    nvmlDevice_t device;
    unsigned gpu_instance, compute_instance;
};

enum { MAX_PARTS = 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct part parts[MAX_PARTS];
static unsigned part_count;

/* GPUs before Ampere know no MIG at all. */
API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    WHOLE_GPU_OR_RETURN(device);
    CHECK_ARGUMENT(current != NULL && pending != NULL);
    if (gpu.cc_major < 8)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = gpu.mig_mode;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(is_mig != NULL);
    *is_mig = gpu.is_instance;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
    WHOLE_GPU_OR_RETURN(device);
    CHECK_ARGUMENT(count != NULL);
    *count = gpu.cc_major < 8 ? 0 : MOST_INSTANCES;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *out)
{
    return state_instance(device, index, out);
}

API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out)
{
    return state_parent(device, out);
}

#define INSTANCE_OR_RETURN(device, out)  \
    GPU_OR_RETURN(device);               \
    CHECK_ARGUMENT((out) != NULL);       \
    if (!gpu.is_instance)                \
        return NVML_ERROR_INVALID_ARGUMENT

API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id)
{
    INSTANCE_OR_RETURN(device, id);
    *id = gpu.instance.gpu_instance;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id)
{
    INSTANCE_OR_RETURN(device, id);
    *id = gpu.instance.compute_instance;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    INSTANCE_OR_RETURN(device, attributes);
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = 14 * gpu.instance.compute_slices, .sharedCopyEngineCount = gpu.instance.gpu_slices,
        .gpuInstanceSliceCount = gpu.instance.gpu_slices, .computeInstanceSliceCount = gpu.instance.compute_slices,
        .memorySizeMB = gpu.instance.memory_mib,
    };
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    return nvmlDeviceGetAttributes_v2(device, attributes);
}

/* The first instance of a GPU with this GPU instance, and this compute instance unless it is NO_INSTANCE. */
static const struct instance *find(const struct gpu *gpu, unsigned gpu_instance, unsigned compute_instance)
{
    for (unsigned i = 0; i < gpu->instance_count; i++)
        if (gpu->instances[i].gpu_instance == gpu_instance
            && (compute_instance == NO_INSTANCE || gpu->instances[i].compute_instance == compute_instance))
            return &gpu->instances[i];
    return NULL;
}

static nvmlReturn_t part_of(nvmlDevice_t device, unsigned gpu_instance, unsigned compute_instance, struct part **out)
{
    WHOLE_GPU_OR_RETURN(device);
    CHECK_ARGUMENT(out != NULL);
    if (find(&gpu, gpu_instance, compute_instance) == NULL)
        return NVML_ERROR_NOT_FOUND;
    pthread_mutex_lock(&lock);
    *out = NULL;
    for (unsigned i = 0; i < part_count; i++)
        if (parts[i].device == device && parts[i].gpu_instance == gpu_instance && parts[i].compute_instance == compute_instance)
            *out = &parts[i];
    if (*out == NULL && part_count < MAX_PARTS) {
        parts[part_count] = (struct part){device, gpu_instance, compute_instance};
        *out = &parts[part_count++];
    }
    pthread_mutex_unlock(&lock);
    return *out == NULL ? NVML_ERROR_INSUFFICIENT_RESOURCES : NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id, struct part **out)
{
    return part_of(device, id, NO_INSTANCE, out);
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(const struct part *of, unsigned id, struct part **out)
{
    CHECK_ARGUMENT(of != NULL);
    return part_of(of->device, of->gpu_instance, id, out);
}

static unsigned profile_of(unsigned slices, bool of_gpu)
{
    for (unsigned i = 0; i < FIRST_SLICES; i++)
        if (profiles[i].slices == slices)
            return of_gpu ? profiles[i].gpu_profile : profiles[i].compute_profile;
    return 99;
}

API nvmlReturn_t nvmlGpuInstanceGetInfo(const struct part *of, nvmlGpuInstanceInfo_t *info)
{
    CHECK_ARGUMENT(of != NULL && info != NULL);
    GPU_OR_RETURN(of->device);
    const struct instance *found = find(&gpu, of->gpu_instance, NO_INSTANCE);
    if (found == NULL)
        return NVML_ERROR_NOT_FOUND;
    *info = (nvmlGpuInstanceInfo_t){of->device, of->gpu_instance, profile_of(found->gpu_slices, true), {0, found->gpu_slices}};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlComputeInstanceGetInfo_v2(const struct part *of, nvmlComputeInstanceInfo_t *info)
{
    CHECK_ARGUMENT(of != NULL && info != NULL);
    GPU_OR_RETURN(of->device);
    const struct instance *found = find(&gpu, of->gpu_instance, of->compute_instance);
    if (found == NULL)
        return NVML_ERROR_NOT_FOUND;
    *info = (nvmlComputeInstanceInfo_t){of->device, NULL, of->compute_instance, profile_of(found->compute_slices, false),
                                        {0, found->compute_slices}};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned profile, nvmlGpuInstanceProfileInfo_t *info)
{
    WHOLE_GPU_OR_RETURN(device);
    CHECK_ARGUMENT(info != NULL);
    if (profile >= FIRST_SLICES || profiles[profile].gpu_profile == 99)
        return NVML_ERROR_NOT_SUPPORTED;
    *info = (nvmlGpuInstanceProfileInfo_t){.id = profiles[profile].gpu_profile, .sliceCount = profiles[profile].slices,
                                           .instanceCount = MOST_INSTANCES / profiles[profile].slices,
                                           .multiprocessorCount = profiles[profile].multiprocessors};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(const struct part *of, unsigned profile, unsigned engines,
                                                             nvmlComputeInstanceProfileInfo_t *info)
{
    CHECK_ARGUMENT(of != NULL && info != NULL && engines == 0);
    GPU_OR_RETURN(of->device);
    if (profile >= FIRST_SLICES || profiles[profile].compute_profile == 99)
        return NVML_ERROR_NOT_SUPPORTED;
    *info = (nvmlComputeInstanceProfileInfo_t){.id = profiles[profile].compute_profile, .sliceCount = profiles[profile].slices,
                                               .instanceCount = 1, .multiprocessorCount = profiles[profile].multiprocessors};
    return NVML_SUCCESS;
}
