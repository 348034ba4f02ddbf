/* Reads the state file: one `key=value` a line, strict, so that a typing error is not a silent default.
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: gpushare.kubernetes contributors
 */
#define _POSIX_C_SOURCE 200809L
#include "parse.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static bool number(const char *text, unsigned long long max, unsigned long long *out)
{
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' && *out <= max;
}

static bool small_number(const char *text, unsigned *out)
{
    unsigned long long value;
    if (!number(text, UINT_MAX, &value))
        return false;
    *out = (unsigned)value;
    return true;
}

static bool copy_text(const char *value, char out[TEXT])
{
    if (*value == '\0' || strlen(value) >= TEXT)
        return false;
    strcpy(out, value);
    return true;
}

static bool hexadecimal(const char *text, unsigned *out)
{
    int used = 0;
    return sscanf(text, "%x%n", out, &used) == 1 && text[used] == '\0';
}

static bool pci_address(const char *text, struct gpu *gpu)
{
    int used = 0;
    return sscanf(text, "%x:%x:%x.0%n", &gpu->pci_domain, &gpu->pci_bus, &gpu->pci_device, &used) == 3
        && used > 0 && text[used] == '\0';
}

static bool compute_capability(const char *text, struct gpu *gpu)
{
    int used = 0;
    return sscanf(text, "%u.%u%n", &gpu->cc_major, &gpu->cc_minor, &used) == 2 && text[used] == '\0';
}

/* `PID MIB NAME`, where the name is the rest of the line. */
static bool add_process(const char *text, struct gpu *gpu)
{
    int used = 0;
    if (gpu->process_count == MAX_PROCESSES)
        return false;
    struct process *process = &gpu->processes[gpu->process_count];
    if (sscanf(text, "%u %llu %n", &process->pid, &process->memory_mib, &used) != 2 || used == 0)
        return false;
    if (!copy_text(text + used, process->name))
        return false;
    process->gpu_instance = process->compute_instance = NO_INSTANCE;
    process->sm = process->memory = process->encoder = process->decoder = 0;
    gpu->process_count++;
    return true;
}

/* `GPU_INSTANCE COMPUTE_INSTANCE PID MIB NAME` */
static bool add_instance_process(const char *text, struct gpu *gpu)
{
    unsigned gpu_instance, compute_instance;
    int used = 0;
    if (sscanf(text, "%u %u %n", &gpu_instance, &compute_instance, &used) != 2 || used == 0 || !add_process(text + used, gpu))
        return false;
    gpu->processes[gpu->process_count - 1].gpu_instance = gpu_instance;
    gpu->processes[gpu->process_count - 1].compute_instance = compute_instance;
    return true;
}

/* `PID SM MEMORY ENCODER DECODER` of a process that stands above it. */
static bool set_load(const char *text, struct gpu *gpu)
{
    unsigned pid, sm, memory, encoder, decoder;
    int used = 0;
    if (sscanf(text, "%u %u %u %u %u%n", &pid, &sm, &memory, &encoder, &decoder, &used) != 5 || text[used] != '\0')
        return false;
    for (unsigned i = 0; i < gpu->process_count; i++) {
        struct process *process = &gpu->processes[i];
        if (process->pid == pid) {
            process->sm = sm, process->memory = memory, process->encoder = encoder, process->decoder = decoder;
            return true;
        }
    }
    return false;
}

static bool set_loads(const char *value, struct gpu *gpu)
{
    static const char *const names[] = {[LOADS_NEW] = "new", [LOADS_OLD] = "old", [LOADS_NONE] = "none"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(value, names[i]) == 0) {
            gpu->loads = i;
            return true;
        }
    return false;
}

/* `GPU_INSTANCE COMPUTE_INSTANCE GPU_SLICES COMPUTE_SLICES MIB UUID` */
static bool add_instance(const char *text, struct gpu *gpu)
{
    int used = 0;
    if (gpu->instance_count == MAX_INSTANCES)
        return false;
    struct instance *new = &gpu->instances[gpu->instance_count];
    if (sscanf(text, "%u %u %u %u %llu %95s%n", &new->gpu_instance, &new->compute_instance, &new->gpu_slices, &new->compute_slices,
               &new->memory_mib, new->uuid, &used) != 6 || text[used] != '\0')
        return false;
    gpu->instance_count++;
    return true;
}

/* `SEQUENCE UUID NUMBER` */
static bool add_xid(const char *text, struct state *state)
{
    int used = 0;
    if (state->xid_count == MAX_XIDS)
        return false;
    struct xid *xid = &state->xids[state->xid_count];
    if (sscanf(text, "%llu %95s %u%n", &xid->sequence, xid->uuid, &xid->number, &used) != 3 || text[used] != '\0')
        return false;
    state->xid_count++;
    return true;
}

static bool set_health(const char *value, struct gpu *gpu)
{
    gpu->lost = strcmp(value, "lost") == 0;
    return gpu->lost || strcmp(value, "ok") == 0;
}

static bool set_numa_node(const char *value, struct gpu *gpu)
{
    unsigned node;
    gpu->numa_node = -1;
    if (strcmp(value, "-1") == 0)
        return true;
    if (!small_number(value, &node) || node > 1023)
        return false;
    gpu->numa_node = (int)node;
    return true;
}

static bool set_gpu(const char *key, const char *value, struct gpu *gpu)
{
    const struct { const char *key; unsigned *out; } numbers[] = {
        {"minor", &gpu->minor},
        {"persistence_mode", &gpu->persistence_mode},
        {"compute_mode", &gpu->compute_mode},
        {"mig_mode", &gpu->mig_mode},
    };
    const struct { const char *key; unsigned long long *out; } sizes[] = {
        {"memory_mib", &gpu->memory_mib},
        {"reserved_mib", &gpu->reserved_mib},
        {"used_mib", &gpu->used_mib},
    };
    const struct { const char *key; char *out; } texts[] = {
        {"uuid", gpu->uuid}, {"name", gpu->name}, {"serial", gpu->serial}, {"nvlinks", gpu->nvlinks}, {"pcie", gpu->pcie},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(key, numbers[i].key) == 0)
            return small_number(value, numbers[i].out);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (strcmp(key, sizes[i].key) == 0)
            return number(value, 1ULL << 32, sizes[i].out);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcmp(key, texts[i].key) == 0)
            return copy_text(value, texts[i].out);
    if (strcmp(key, "pci") == 0)
        return pci_address(value, gpu);
    if (strcmp(key, "pci_device_id") == 0)
        return hexadecimal(value, &gpu->pci_device_id);
    if (strcmp(key, "pci_subsystem_id") == 0)
        return hexadecimal(value, &gpu->pci_subsystem_id);
    if (strcmp(key, "compute_capability") == 0)
        return compute_capability(value, gpu);
    if (strcmp(key, "numa_node") == 0)
        return set_numa_node(value, gpu);
    if (strcmp(key, "health") == 0)
        return set_health(value, gpu);
    if (strcmp(key, "loads") == 0)
        return set_loads(value, gpu);
    if (strcmp(key, "load") == 0)
        return set_load(value, gpu);
    if (strcmp(key, "process") == 0)
        return add_process(value, gpu);
    if (strcmp(key, "instance_process") == 0)
        return add_instance_process(value, gpu);
    if (strcmp(key, "instance") == 0)
        return add_instance(value, gpu);
    return false;
}

static bool one_of(const char *value, const char *const *names, unsigned count, unsigned *out)
{
    for (*out = 0; *out < count; ++*out)
        if (strcmp(value, names[*out]) == 0)
            return true;
    return false;
}

static bool set_driver(const char *value, struct driver *driver)
{
    static const char *const names[] = {[DRIVER_OK] = "ok", [DRIVER_GONE] = "gone", [DRIVER_MISMATCH] = "mismatch"};
    unsigned found;
    bool known = one_of(value, names, sizeof names / sizeof *names, &found);
    driver->state = found;
    return known;
}

static bool set_limits(const char *value, struct driver *driver)
{
    static const char *const names[] = {
        [LIMITS_OFF] = "off", [LIMITS_MISC] = "misc", [LIMITS_DMEM] = "dmem", [LIMITS_ANY_HIERARCHY] = "any-hierarchy",
    };
    unsigned found;
    bool known = one_of(value, names, sizeof names / sizeof *names, &found);
    driver->limits = found;
    return known;
}

static bool set(const char *key, const char *value, struct state *state)
{
    unsigned index;
    int used = 0;
    if (strcmp(key, "driver") == 0)
        return set_driver(value, &state->driver);
    if (strcmp(key, "memory_limits") == 0)
        return set_limits(value, &state->driver);
    if (strcmp(key, "driver_version") == 0)
        return copy_text(value, state->driver.version);
    if (strcmp(key, "cuda_version") == 0)
        return small_number(value, &state->driver.cuda_version);
    if (strcmp(key, "gpus") == 0)
        return small_number(value, &state->gpu_count) && state->gpu_count <= MAX_GPUS;
    if (strcmp(key, "xid") == 0)
        return add_xid(value, state);
    if (sscanf(key, "gpu.%u.%n", &index, &used) == 1 && used > 0 && index < state->gpu_count)
        return set_gpu(key + used, value, &state->gpus[index]);
    return false;
}

static bool complete(const struct state *state, char *error, size_t error_size)
{
    if (state->driver.version[0] == '\0') {
        snprintf(error, error_size, "found no driver_version");
        return false;
    }
    for (unsigned i = 0; i < state->gpu_count; i++) {
        const struct gpu *gpu = &state->gpus[i];
        unsigned long long used = gpu->reserved_mib + gpu->used_mib;
        for (unsigned p = 0; p < gpu->process_count; p++)
            used += gpu->processes[p].memory_mib;
        if (gpu->uuid[0] == '\0' || gpu->name[0] == '\0' || gpu->memory_mib == 0) {
            snprintf(error, error_size, "GPU %u has no uuid, name or memory_mib", i);
            return false;
        }
        if (used > gpu->memory_mib) {
            snprintf(error, error_size, "GPU %u has %llu MiB but %llu MiB in use", i, gpu->memory_mib, used);
            return false;
        }
    }
    return true;
}

bool parse_state(FILE *file, struct state *out, char *error, size_t error_size)
{
    char line[512];
    unsigned number_of_line = 0;
    memset(out, 0, sizeof *out);
    while (fgets(line, sizeof line, file) != NULL) {
        number_of_line++;
        char *end = strchr(line, '\n');
        if (end == NULL) {
            snprintf(error, error_size, "line %u: longer than %zu bytes or without an end", number_of_line, sizeof line - 2);
            return false;
        }
        *end = '\0';
        if (line[0] == '\0' || line[0] == '#')
            continue;
        char *equals = strchr(line, '=');
        if (equals != NULL)
            *equals = '\0';
        if (equals == NULL || !set(line, equals + 1, out)) {
            snprintf(error, error_size, "line %u: found \"%.60s%s%.60s\", expected a known key=value",
                     number_of_line, line, equals == NULL ? "" : "=", equals == NULL ? "" : equals + 1);
            return false;
        }
    }
    if (ferror(file)) {
        snprintf(error, error_size, "%s", strerror(errno));
        return false;
    }
    return complete(out, error, error_size);
}
