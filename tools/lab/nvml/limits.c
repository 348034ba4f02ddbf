/* Limits of a GPU's memory for a control group, as drivers from 615 on have them. They are kept in a file that all processes of a
 * machine share, and which a reboot empties, like the driver's own memory. With dmem they also stand in the group's dmem.max, as the
 * kernel has them there. A container that sees the machine's folders below another one, such as /host, has the same groups and limits.
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: gpushare.kubernetes contributors
 */
#define _GNU_SOURCE
#include "answer.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_LIMITS_FILE "/dev/shm/gpushare-lab.limits"
#define DEFAULT_CGROUPS "/sys/fs/cgroup"

enum { MAX_LIMITS = 4096, GROUP = 1024 };

/* A control group's folder, without a slash at its end. before: the length of what lies before its name on the machine itself. */
struct place {
    char path[GROUP];
    size_t before;
};

/* inode: of the control group's folder. A new one of the same name is another group. group: its name on the machine itself. */
struct limit {
    char uuid[TEXT];
    unsigned long long inode, soft, hard;
    char group[GROUP];
};

static const char *setting(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value == NULL || *value == '\0' ? otherwise : value;
}

static bool folder(const char *path, unsigned long long *inode)
{
    struct stat found;
    if (stat(path, &found) != 0 || !S_ISDIR(found.st_mode))
        return false;
    *inode = found.st_ino;
    return true;
}

static bool has(const char *path, const char *file)
{
    char name[PATH_MAX];
    return snprintf(name, sizeof name, "%s/%s", path, file) < (int)sizeof name && access(name, F_OK) == 0;
}

/* The group's own folder, or why the driver does not take it. */
static nvmlReturn_t group_of(const struct driver *driver, const char *path, struct place *out, unsigned long long *inode)
{
    const char *root = setting("GPUSHARE_LAB_NVML_CGROUPS", DEFAULT_CGROUPS), *found = strstr(path, root);
    size_t length = strlen(path), end = strlen(root);
    while (length > 1 && path[length - 1] == '/')
        length--;
    if (length >= GROUP || found == NULL || (found[end] != '/' && found[end] != '\0'))
        return NVML_ERROR_INVALID_ARGUMENT;
    memcpy(out->path, path, length);
    out->path[length] = '\0';
    out->before = (size_t)(found - path);
    if (!folder(out->path, inode))
        return NVML_ERROR_NOT_FOUND;
    if (driver->limits != LIMITS_ANY_HIERARCHY && !has(out->path, "cgroup.controllers"))
        return NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

/* The same folder below what the caller's groups are below. */
static bool below(const struct place *place, const char *name, char *out)
{
    return snprintf(out, PATH_MAX, "%.*s%s", (int)place->before, place->path, name) < PATH_MAX;
}

static nvmlReturn_t admitted(nvmlDevice_t device, const char *path, struct driver *driver, struct gpu *gpu,
                             struct place *place, unsigned long long *inode)
{
    nvmlReturn_t answer = state_gpu(device, gpu);
    if (answer == NVML_SUCCESS)
        answer = state_driver(driver);
    if (answer != NVML_SUCCESS)
        return answer;
    if (driver->limits == LIMITS_OFF)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (gpu->mig_mode != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    CHECK_ARGUMENT(path != NULL);
    return group_of(driver, path, place, inode);
}

/* All limits of groups that still exist. */
static unsigned read_limits(FILE *file, struct limit *out, const struct place *place)
{
    unsigned count = 0;
    struct limit one;
    char name[PATH_MAX];
    while (count < MAX_LIMITS
           && fscanf(file, "%95s %llu %llu %llu %1023[^\n]", one.uuid, &one.inode, &one.soft, &one.hard, one.group) == 5) {
        unsigned long long inode;
        if (below(place, one.group, name) && folder(name, &inode) && inode == one.inode)
            out[count++] = one;
    }
    return count;
}

/* The file, locked, from its beginning. Processes that may only read get it so. */
static FILE *limits_file(bool write, const struct place *place)
{
    char beside[PATH_MAX];
    const char *path = setting("GPUSHARE_LAB_NVML_LIMITS", below(place, DEFAULT_LIMITS_FILE, beside) ? beside : DEFAULT_LIMITS_FILE);
    int handle = open(path, (write ? O_RDWR | O_CREAT : O_RDONLY) | O_CLOEXEC, 0644);
    if (handle < 0)
        return NULL;
    flock(handle, write ? LOCK_EX : LOCK_SH);
    return fdopen(handle, write ? "r+" : "r");
}

static struct limit *find(struct limit *limits, unsigned count, const char *uuid, const char *group)
{
    for (unsigned i = 0; i < count; i++)
        if (strcmp(limits[i].uuid, uuid) == 0 && strcmp(limits[i].group, group) == 0)
            return &limits[i];
    return NULL;
}

/* The group's dmem.max as the kernel has it: a line for each GPU, also for those without a limit. A real kernel refuses it, because it
 * has no such GPU. */
static void write_dmem(const struct place *place, const struct limit *all, unsigned count)
{
    char name[PATH_MAX];
    unsigned gpus = 0;
    state_count(&gpus);
    FILE *file = snprintf(name, sizeof name, "%s/dmem.max", place->path) < (int)sizeof name ? fopen(name, "we") : NULL;
    for (unsigned i = 0; file != NULL && i < gpus; i++) {
        nvmlDevice_t device;
        struct gpu gpu;
        if (state_find(BY_INDEX, i, NULL, &device) != NVML_SUCCESS || state_gpu(device, &gpu) != NVML_SUCCESS)
            continue;
        fprintf(file, "nvidia/%08x:%02x:%02x.0/vidmem ", gpu.pci_domain, gpu.pci_bus, gpu.pci_device);
        const struct limit *known = find((struct limit *)all, count, gpu.uuid, place->path + place->before);
        if (known != NULL && known->hard != NVML_DEVICE_MEMORY_LIMIT_MAX)
            fprintf(file, "%llu\n", known->hard);
        else
            fputs("max\n", file);
    }
    if (file != NULL)
        fclose(file);
}

API nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits)
{
    CHECK_ARGUMENT(limits != NULL);
    struct driver driver;
    struct gpu gpu;
    struct place place;
    struct limit wanted = {.soft = limits->softLimit, .hard = limits->hardLimit};
    nvmlReturn_t answer = admitted(device, limits->nameSpace, &driver, &gpu, &place, &wanted.inode);
    if (answer != NVML_SUCCESS)
        return answer;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    if (driver.limits == LIMITS_DMEM && !has(place.path, "dmem.max"))
        return NVML_ERROR_NOT_FOUND;
    strcpy(wanted.group, place.path + place.before);
    CHECK_ARGUMENT(wanted.soft <= wanted.hard && strchr(wanted.group, '\n') == NULL);
    strcpy(wanted.uuid, gpu.uuid);
    FILE *file = limits_file(true, &place);
    if (file == NULL)
        return NVML_ERROR_UNKNOWN;
    struct limit *all = calloc(MAX_LIMITS + 1, sizeof *all);
    unsigned count = all == NULL ? 0 : read_limits(file, all, &place);
    if (all == NULL || count == MAX_LIMITS) {
        answer = NVML_ERROR_INSUFFICIENT_RESOURCES;
    } else {
        struct limit *known = find(all, count, wanted.uuid, wanted.group);
        *(known != NULL ? known : &all[count++]) = wanted;
        rewind(file);
        if (ftruncate(fileno(file), 0) != 0)
            answer = NVML_ERROR_UNKNOWN;
        for (unsigned i = 0; i < count; i++)
            if (all[i].soft != 0 || all[i].hard != NVML_DEVICE_MEMORY_LIMIT_MAX)
                fprintf(file, "%s %llu %llu %llu %s\n", all[i].uuid, all[i].inode, all[i].soft, all[i].hard, all[i].group);
        if (fflush(file) != 0)
            answer = NVML_ERROR_UNKNOWN;
        if (driver.limits == LIMITS_DMEM)
            write_dmem(&place, all, count);
    }
    free(all);
    fclose(file);
    return answer;
}

/* What the GPU's processes of this group, and of those below it, use together. */
static unsigned long long used_in(const char *group, const struct gpu *gpu)
{
    char name[PATH_MAX];
    unsigned long long used = 0;
    unsigned pid;
    if (snprintf(name, sizeof name, "%s/cgroup.procs", group) >= (int)sizeof name)
        return 0;
    FILE *file = fopen(name, "re");
    while (file != NULL && fscanf(file, "%u", &pid) == 1)
        for (unsigned i = 0; i < gpu->process_count; i++)
            if (gpu->processes[i].pid == pid)
                used += gpu->processes[i].memory_mib * MIB;
    if (file != NULL)
        fclose(file);
    DIR *entries = opendir(group);
    const struct dirent *entry;
    while (entries != NULL && (entry = readdir(entries)) != NULL)
        if (entry->d_type == DT_DIR && entry->d_name[0] != '.'
            && snprintf(name, sizeof name, "%s/%s", group, entry->d_name) < (int)sizeof name)
            used += used_in(name, gpu);
    if (entries != NULL)
        closedir(entries);
    return used;
}

API nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
    CHECK_ARGUMENT(limits != NULL);
    struct driver driver;
    struct gpu gpu;
    struct place place;
    unsigned long long inode;
    nvmlReturn_t answer = admitted(device, limits->nameSpace, &driver, &gpu, &place, &inode);
    if (answer != NVML_SUCCESS)
        return answer;
    limits->softLimit = 0;
    limits->hardLimit = NVML_DEVICE_MEMORY_LIMIT_MAX;
    limits->currentUsed = used_in(place.path, &gpu);
    FILE *file = limits_file(false, &place);
    char *group = place.path + place.before;
    struct limit *all = file == NULL ? NULL : calloc(MAX_LIMITS, sizeof *all);
    unsigned count = all == NULL ? 0 : read_limits(file, all, &place);
    /* A group has the limit of the nearest one, itself included, that has one; with dmem that of the nearest one in which dmem counts,
     * whether that has one or not. NVIDIA, MPS v3 Memory Partitioning, "Setting on a leaf versus a parent" and "dmem versus misc", read
     * on 2026-11-29; for dmem measured on driver 615.71.09: Dynamo, "Per-GPU Compute and Memory Limits with MPS", the same day. */
    for (char *end = group + strlen(group); end != NULL && end != group; end = strrchr(group, '/')) {
        *end = '\0';
        const struct limit *known = find(all, count, gpu.uuid, group);
        if (known != NULL) {
            limits->softLimit = known->soft;
            limits->hardLimit = known->hard;
        }
        if (driver.limits == LIMITS_DMEM ? has(place.path, "dmem.max") : known != NULL)
            break;
    }
    free(all);
    if (file != NULL)
        fclose(file);
    return NVML_SUCCESS;
}
