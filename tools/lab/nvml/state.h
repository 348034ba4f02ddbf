/* The state of the simulated GPUs, as the state file says it now.
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: gpushare.kubernetes contributors
 *
 * Everything here is safe to call from any thread: answers are copies.
 */
#ifndef GPUSHARE_LAB_NVML_STATE_H
#define GPUSHARE_LAB_NVML_STATE_H

#include <stdbool.h>
#include <stddef.h>

#include "nvml_api.h"

enum { MAX_GPUS = 32, MAX_PROCESSES = 64, MAX_XIDS = 64, MAX_INSTANCES = 8, TEXT = 96 };

struct process {
    unsigned pid;
    unsigned gpu_instance, compute_instance; /* NO_INSTANCE without MIG */
    unsigned long long memory_mib;
    unsigned sm, memory, encoder, decoder; /* percent */
    char name[TEXT];
};

/* A MIG device: a compute instance of a GPU instance. */
struct instance {
    unsigned gpu_instance, compute_instance, gpu_slices, compute_slices;
    unsigned long long memory_mib;
    char uuid[TEXT];
};

struct gpu {
    char uuid[TEXT], name[TEXT], serial[TEXT];
    unsigned minor;
    unsigned pci_domain, pci_bus, pci_device, pci_device_id, pci_subsystem_id;
    unsigned long long memory_mib, reserved_mib, used_mib; /* used: beyond that of the listed processes */
    unsigned cc_major, cc_minor;
    int numa_node; /* -1: none */
    char nvlinks[TEXT]; /* "BUS:COUNT …", bus in hexadecimal or "switch"; "none" */
    char pcie[TEXT];    /* "BRIDGE.SWITCH": GPUs that have one of them in common; "none" */
    unsigned persistence_mode, compute_mode, mig_mode;
    bool lost;
    /* How the driver counts by process: the newer call, the older one, or not at all. */
    enum { LOADS_NEW, LOADS_OLD, LOADS_NONE } loads;
    unsigned process_count;
    struct process processes[MAX_PROCESSES];
    unsigned instance_count;
    struct instance instances[MAX_INSTANCES];
    /* Of a MIG device's handle: it stands for this instance alone, and memory, name and processes are the instance's. */
    bool is_instance;
    struct instance instance;
};

struct driver {
    enum { DRIVER_OK, DRIVER_GONE, DRIVER_MISMATCH } state;
    /* Whether it limits memory by control group: not at all, by its own map, by the kernel's controller dmem, and with that of
     * version 1 too, where no real driver does, for machines that have no other. */
    enum { LIMITS_OFF, LIMITS_MISC, LIMITS_DMEM, LIMITS_ANY_HIERARCHY } limits;
    char version[TEXT];
    unsigned cuda_version; /* 1000 x major + 10 x minor */
};

struct xid {
    unsigned long long sequence; /* grows from event to event, also across states */
    char uuid[TEXT];
    unsigned number;
};

enum find_by { BY_INDEX, BY_UUID, BY_SERIAL, BY_PCI };

nvmlReturn_t state_init(void);     /* what nvmlInit answers; counts its calls */
nvmlReturn_t state_shutdown(void);

nvmlReturn_t state_driver(struct driver *out);
nvmlReturn_t state_count(unsigned *out);
nvmlReturn_t state_find(enum find_by key, unsigned index, const char *text, nvmlDevice_t *out);
nvmlReturn_t state_gpu(nvmlDevice_t device, struct gpu *out);   /* GPU_IS_LOST for a lost or removed GPU */
nvmlReturn_t state_index(nvmlDevice_t device, unsigned *out);
nvmlReturn_t state_instance(nvmlDevice_t device, unsigned index, nvmlDevice_t *out);   /* of those that are visible here */
nvmlReturn_t state_parent(nvmlDevice_t device, nvmlDevice_t *out);
bool state_is_device(const void *pointer);

unsigned long long state_last_xid(void);   /* sequence of the newest event, 0 if none */
/* The oldest event after `sequence` of one of `devices`; NVML_ERROR_TIMEOUT if there is none yet. */
nvmlReturn_t state_next_xid(unsigned long long sequence, const nvmlDevice_t *devices, unsigned count,
                            struct xid *out, nvmlDevice_t *device);

#endif
