/* Keeps the state file's content at hand and hands out copies; reads the file again when it has changed.
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: gpushare.kubernetes contributors
 */
#define _POSIX_C_SOURCE 200809L
#include "state.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "parse.h"

#define DEFAULT_STATE_FILE "/var/lib/gpushare-lab/gpus.state"
#define DEFAULT_DEVICE_DIRECTORY "/dev"

/* A handle stays the same GPU for the life of the process, whatever happens to the list of GPUs. */
struct nvmlDevice_st {
    char uuid[TEXT];
};

enum { MAX_HANDLES = 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned initialized;
static bool loaded; /* `state` holds a good content */
static struct stat last_stat;
static struct state state, candidate;
static unsigned handle_count;
static struct nvmlDevice_st handles[MAX_HANDLES];

static const char *setting(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value == NULL || *value == '\0' ? otherwise : value;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size
        && a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Said once per content, on standard error: only a mistake in the lab leads here. */
static void complain(const char *path, const char *reason)
{
    static char last[512];
    char message[512];
    snprintf(message, sizeof message, "simulated NVML: %s: %s; write it with gpus.py\n", path, reason);
    if (strcmp(message, last) != 0) {
        fputs(message, stderr);
        strcpy(last, message);
    }
}

/* Under the lock. A file that cannot be read right leaves the last good content in force. */
static bool refresh(void)
{
    const char *path = setting("GPUSHARE_LAB_NVML_STATE", DEFAULT_STATE_FILE);
    char error[256];
    struct stat now;
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        snprintf(error, sizeof error, "cannot be read (%s)", strerror(errno));
        complain(path, error);
        return loaded;
    }
    if (fstat(fileno(file), &now) == 0 && !(loaded && same_file(&now, &last_stat))) {
        if (parse_state(file, &candidate, error, sizeof error)) {
            state = candidate;
            last_stat = now;
            loaded = true;
        } else {
            complain(path, error);
        }
    }
    fclose(file);
    return loaded;
}

static bool visible(const struct gpu *gpu)
{
    char node[512];
    snprintf(node, sizeof node, "%s/nvidia%u", setting("GPUSHARE_LAB_NVML_DEV", DEFAULT_DEVICE_DIRECTORY), gpu->minor);
    return access(node, F_OK) == 0;
}

/* By the compute instance's capability, whose minor numbers the driver has fixed for 32 GPUs of 15 GPU instances of 8 compute instances
 * (MIG user guide, "/dev based nvidia-capabilities"). */
static bool instance_visible(const struct gpu *gpu, const struct instance *instance)
{
    char node[512];
    unsigned minor = 3 + (gpu->minor * 15 + instance->gpu_instance) * 9 + 1 + instance->compute_instance;
    snprintf(node, sizeof node, "%s/nvidia-caps/nvidia-cap%u", setting("GPUSHARE_LAB_NVML_DEV", DEFAULT_DEVICE_DIRECTORY), minor);
    return gpu->mig_mode == 1 && access(node, F_OK) == 0;
}

/* Under the lock: the state may be asked about. */
static nvmlReturn_t ready(void)
{
    if (initialized == 0)
        return NVML_ERROR_UNINITIALIZED;
    if (!refresh() || state.driver.state == DRIVER_GONE)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    return NVML_SUCCESS;
}

static nvmlReturn_t handle_of(const char *uuid, nvmlDevice_t *out)
{
    for (unsigned i = 0; i < handle_count; i++)
        if (strcmp(handles[i].uuid, uuid) == 0) {
            *out = &handles[i];
            return NVML_SUCCESS;
        }
    if (handle_count == MAX_HANDLES)
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    strcpy(handles[handle_count].uuid, uuid);
    *out = &handles[handle_count++];
    return NVML_SUCCESS;
}

bool state_is_device(const void *pointer)
{
    pthread_mutex_lock(&lock);
    bool found = false;
    for (unsigned i = 0; i < handle_count; i++)
        found = found || pointer == &handles[i];
    pthread_mutex_unlock(&lock);
    return found;
}

nvmlReturn_t state_init(void)
{
    pthread_mutex_lock(&lock);
    nvmlReturn_t answer = NVML_SUCCESS;
    if (!refresh() || state.driver.state == DRIVER_GONE)
        answer = NVML_ERROR_DRIVER_NOT_LOADED;
    else if (state.driver.state == DRIVER_MISMATCH)
        answer = NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    else
        initialized++;
    pthread_mutex_unlock(&lock);
    return answer;
}

nvmlReturn_t state_shutdown(void)
{
    pthread_mutex_lock(&lock);
    nvmlReturn_t answer = initialized == 0 ? NVML_ERROR_UNINITIALIZED : NVML_SUCCESS;
    if (initialized > 0)
        initialized--;
    pthread_mutex_unlock(&lock);
    return answer;
}

nvmlReturn_t state_driver(struct driver *out)
{
    pthread_mutex_lock(&lock);
    nvmlReturn_t answer = ready();
    *out = state.driver;
    pthread_mutex_unlock(&lock);
    return answer;
}

nvmlReturn_t state_count(unsigned *out)
{
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    nvmlReturn_t answer = ready();
    *out = 0;
    for (unsigned i = 0; answer == NVML_SUCCESS && i < state.gpu_count; i++)
        *out += visible(&state.gpus[i]);
    pthread_mutex_unlock(&lock);
    return answer;
}

static bool same_pci(const struct gpu *gpu, const char *text)
{
    unsigned domain, bus, device;
    int used = 0;
    if (sscanf(text, "%x:%x:%x%n", &domain, &bus, &device, &used) != 3
        || (text[used] != '\0' && strcmp(text + used, ".0") != 0))
        return false;
    return domain == gpu->pci_domain && bus == gpu->pci_bus && device == gpu->pci_device;
}

nvmlReturn_t state_find(enum find_by key, unsigned index, const char *text, nvmlDevice_t *out)
{
    if (out == NULL || (key != BY_INDEX && text == NULL))
        return NVML_ERROR_INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    nvmlReturn_t answer = ready();
    if (answer == NVML_SUCCESS) {
        answer = key == BY_INDEX ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_FOUND;
        for (unsigned i = 0, position = 0; i < state.gpu_count; i++) {
            const struct gpu *gpu = &state.gpus[i];
            if (!visible(gpu))
                continue;
            bool found = key == BY_INDEX  ? position == index
                       : key == BY_UUID   ? strcasecmp(gpu->uuid, text) == 0
                       : key == BY_SERIAL ? strcmp(gpu->serial, text) == 0
                                          : same_pci(gpu, text);
            position++;
            const char *uuid = gpu->uuid;
            for (unsigned m = 0; key == BY_UUID && !found && m < gpu->instance_count; m++)
                if (strcasecmp(gpu->instances[m].uuid, text) == 0 && instance_visible(gpu, &gpu->instances[m])) {
                    found = true;
                    uuid = gpu->instances[m].uuid;
                }
            if (found) {
                answer = gpu->lost ? NVML_ERROR_GPU_IS_LOST : handle_of(uuid, out);
                break;
            }
        }
    }
    pthread_mutex_unlock(&lock);
    return answer;
}

/* Under the lock: the GPU of a handle and its place among those visible. Of a MIG device: its GPU, the instance (else NULL), and the
 * instance's place in its GPU. */
static nvmlReturn_t lookup(nvmlDevice_t device, const struct gpu **gpu, const struct instance **instance, unsigned *index)
{
    *instance = NULL;
    nvmlReturn_t answer = ready();
    if (answer != NVML_SUCCESS)
        return answer;
    if (device < handles || device >= handles + handle_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *index = 0;
    for (unsigned i = 0; i < state.gpu_count; i++) {
        *gpu = &state.gpus[i];
        if (!visible(*gpu))
            continue;
        if (strcmp((*gpu)->uuid, device->uuid) == 0)
            return (*gpu)->lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
        for (unsigned m = 0, place = 0; m < (*gpu)->instance_count; m++) {
            const struct instance *each = &(*gpu)->instances[m];
            if (!instance_visible(*gpu, each))
                continue;
            if (strcmp(each->uuid, device->uuid) == 0) {
                *instance = each;
                *index = place;
                return (*gpu)->lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
            }
            place++;
        }
        ++*index;
    }
    return strncmp(device->uuid, "MIG-", 4) == 0 ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_GPU_IS_LOST;
}

/* What is left of a GPU for whoever asks about one of its instances. */
static void narrow(struct gpu *gpu, const struct instance *instance)
{
    static const unsigned memory_slices[] = {0, 1, 2, 4, 4, 0, 6, 8, 8};
    unsigned kept = 0;
    char name[TEXT], profile[TEXT];
    gpu->is_instance = true;
    gpu->instance = *instance;
    unsigned long long gb = ((gpu->memory_mib + 1023) / 1024 * memory_slices[instance->gpu_slices % 9] + 4) / 8;
    snprintf(profile, sizeof profile, "%ug.%llugb", instance->gpu_slices, gb);
    snprintf(name, sizeof name, "%.40s MIG %.20s", gpu->name, profile);
    if (instance->compute_slices != instance->gpu_slices)
        snprintf(name, sizeof name, "%.40s MIG %uc.%.20s", gpu->name, instance->compute_slices, profile);
    strcpy(gpu->name, name);
    strcpy(gpu->uuid, instance->uuid);
    gpu->memory_mib = instance->memory_mib;
    gpu->reserved_mib = gpu->used_mib = 0;
    for (unsigned i = 0; i < gpu->process_count; i++)
        if (gpu->processes[i].gpu_instance == instance->gpu_instance && gpu->processes[i].compute_instance == instance->compute_instance)
            gpu->processes[kept++] = gpu->processes[i];
    gpu->process_count = kept;
    gpu->instance_count = 0;
}

nvmlReturn_t state_gpu(nvmlDevice_t device, struct gpu *out)
{
    const struct gpu *gpu;
    const struct instance *instance;
    unsigned index;
    pthread_mutex_lock(&lock);
    nvmlReturn_t answer = lookup(device, &gpu, &instance, &index);
    if (answer == NVML_SUCCESS) {
        *out = *gpu;
        if (instance != NULL)
            narrow(out, instance);
    }
    pthread_mutex_unlock(&lock);
    return answer;
}

nvmlReturn_t state_instance(nvmlDevice_t device, unsigned index, nvmlDevice_t *out)
{
    const struct gpu *gpu;
    const struct instance *instance;
    unsigned place;
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    nvmlReturn_t answer = lookup(device, &gpu, &instance, &place);
    if (answer == NVML_SUCCESS && (instance != NULL || gpu->mig_mode != 1))
        answer = NVML_ERROR_INVALID_ARGUMENT;
    if (answer == NVML_SUCCESS) {
        answer = NVML_ERROR_NOT_FOUND;
        for (unsigned m = 0, at = 0; answer == NVML_ERROR_NOT_FOUND && m < gpu->instance_count; m++)
            if (instance_visible(gpu, &gpu->instances[m]) && at++ == index)
                answer = handle_of(gpu->instances[m].uuid, out);
    }
    pthread_mutex_unlock(&lock);
    return answer;
}

nvmlReturn_t state_parent(nvmlDevice_t device, nvmlDevice_t *out)
{
    const struct gpu *gpu;
    const struct instance *instance;
    unsigned index;
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    nvmlReturn_t answer = lookup(device, &gpu, &instance, &index);
    if (answer == NVML_SUCCESS)
        answer = instance == NULL ? NVML_ERROR_INVALID_ARGUMENT : handle_of(gpu->uuid, out);
    pthread_mutex_unlock(&lock);
    return answer;
}

nvmlReturn_t state_index(nvmlDevice_t device, unsigned *out)
{
    const struct gpu *gpu;
    const struct instance *instance;
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    nvmlReturn_t answer = lookup(device, &gpu, &instance, out);
    pthread_mutex_unlock(&lock);
    return answer;
}

unsigned long long state_last_xid(void)
{
    unsigned long long last = 0;
    pthread_mutex_lock(&lock);
    refresh();
    for (unsigned i = 0; i < state.xid_count; i++)
        if (state.xids[i].sequence > last)
            last = state.xids[i].sequence;
    pthread_mutex_unlock(&lock);
    return last;
}

nvmlReturn_t state_next_xid(unsigned long long sequence, const nvmlDevice_t *devices, unsigned count,
                            struct xid *out, nvmlDevice_t *device)
{
    pthread_mutex_lock(&lock);
    nvmlReturn_t answer = ready();
    if (answer == NVML_SUCCESS) {
        const struct xid *next = NULL;
        answer = NVML_ERROR_TIMEOUT;
        for (unsigned i = 0; i < state.xid_count; i++) {
            const struct xid *xid = &state.xids[i];
            if (xid->sequence <= sequence || (next != NULL && xid->sequence >= next->sequence))
                continue;
            for (unsigned d = 0; d < count; d++)
                if (strcmp(devices[d]->uuid, xid->uuid) == 0) {
                    next = xid;
                    *device = devices[d];
                }
        }
        const struct gpu *gpu;
        const struct instance *instance;
        unsigned index;
        for (unsigned d = 0; next == NULL && d < count; d++)
            if (lookup(devices[d], &gpu, &instance, &index) == NVML_ERROR_GPU_IS_LOST)
                answer = NVML_ERROR_GPU_IS_LOST;
        if (next != NULL) {
            *out = *next;
            answer = NVML_SUCCESS;
        }
    }
    pthread_mutex_unlock(&lock);
    return answer;
}
