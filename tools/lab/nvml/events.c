/* Event sets: XID events of the state file, delivered to whoever registered before they came.
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: gpushare.kubernetes contributors
 */
#define _POSIX_C_SOURCE 200809L
#include "answer.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { POLL_MILLISECONDS = 20 };

#define SUPPORTED_EVENTS (NVML_EVENT_SINGLE_BIT_ECC_ERROR | NVML_EVENT_DOUBLE_BIT_ECC_ERROR | NVML_EVENT_XID_CRITICAL_ERROR)

struct nvmlEventSet_st {
    struct nvmlEventSet_st *next;
    unsigned long long seen; /* sequence of the last event delivered */
    unsigned count;
    nvmlDevice_t devices[MAX_GPUS];
};

/* Sets that are not freed, so that a wrong handle is an error and not a crash. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nvmlEventSet_st *sets;

static bool known(nvmlEventSet_t set)
{
    for (struct nvmlEventSet_st *each = sets; each != NULL; each = each->next)
        if (each == set)
            return true;
    return false;
}

API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    struct driver driver;
    nvmlReturn_t answer = state_driver(&driver);
    if (answer != NVML_SUCCESS)
        return answer;
    CHECK_ARGUMENT(set != NULL);
    struct nvmlEventSet_st *new = calloc(1, sizeof *new);
    if (new == NULL)
        return NVML_ERROR_MEMORY;
    new->seen = state_last_xid();
    pthread_mutex_lock(&lock);
    new->next = sets;
    sets = new;
    pthread_mutex_unlock(&lock);
    *set = new;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    nvmlReturn_t answer = NVML_ERROR_INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    for (struct nvmlEventSet_st **link = &sets; *link != NULL; link = &(*link)->next)
        if (*link == set) {
            *link = set->next;
            free(set);
            answer = NVML_SUCCESS;
            break;
        }
    pthread_mutex_unlock(&lock);
    return answer;
}

API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(types != NULL);
    *types = SUPPORTED_EVENTS;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    WHOLE_GPU_OR_RETURN(device);
    if ((types & ~SUPPORTED_EVENTS) != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t answer = NVML_ERROR_INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    if (known(set)) {
        answer = NVML_SUCCESS;
        bool present = (types & NVML_EVENT_XID_CRITICAL_ERROR) == 0; /* nothing else ever comes */
        for (unsigned i = 0; i < set->count; i++)
            present = present || set->devices[i] == device;
        if (!present && set->count == MAX_GPUS)
            answer = NVML_ERROR_INSUFFICIENT_RESOURCES;
        else if (!present)
            set->devices[set->count++] = device;
    }
    pthread_mutex_unlock(&lock);
    return answer;
}

/* One look: an event, NVML_ERROR_TIMEOUT if there is none now, or an error. */
static nvmlReturn_t take_event(nvmlEventSet_t set, nvmlEventData_t *data)
{
    struct xid xid;
    nvmlDevice_t device;
    nvmlReturn_t answer = NVML_ERROR_INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    if (known(set)) {
        answer = state_next_xid(set->seen, set->devices, set->count, &xid, &device);
        if (answer == NVML_SUCCESS) {
            set->seen = xid.sequence;
            *data = (nvmlEventData_t){device, NVML_EVENT_XID_CRITICAL_ERROR, xid.number, NO_INSTANCE, NO_INSTANCE};
        }
    }
    pthread_mutex_unlock(&lock);
    return answer;
}

static long long now_milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_milliseconds)
{
    long long deadline = now_milliseconds() + timeout_milliseconds;
    CHECK_ARGUMENT(data != NULL);
    for (;;) {
        nvmlReturn_t answer = take_event(set, data);
        long long left = deadline - now_milliseconds();
        if (answer != NVML_ERROR_TIMEOUT || left <= 0)
            return answer;
        nanosleep(&(struct timespec){.tv_nsec = (left < POLL_MILLISECONDS ? left : POLL_MILLISECONDS) * 1000000L}, NULL);
    }
}

/* The first form ends before the instance ids: its caller has no room for them. */
API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_v1_t *data, unsigned timeout_milliseconds)
{
    nvmlEventData_t full;
    CHECK_ARGUMENT(data != NULL);
    nvmlReturn_t answer = nvmlEventSetWait_v2(set, &full, timeout_milliseconds);
    if (answer == NVML_SUCCESS)
        *data = (nvmlEventData_v1_t){full.device, full.eventType, full.eventData};
    return answer;
}
