/* Short forms that the files which answer NVML's calls share.
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: gpushare.kubernetes contributors
 */
#ifndef GPUSHARE_LAB_NVML_ANSWER_H
#define GPUSHARE_LAB_NVML_ANSWER_H

#include <stdio.h>
#include <string.h>

#include "state.h"

#define MIB (1024ULL * 1024ULL)

/* Declares `gpu`, the device's present state, or answers the call with what hinders it. */
#define GPU_OR_RETURN(device)                              \
    struct gpu gpu;                                       \
    nvmlReturn_t gpu_answer = state_gpu((device), &gpu); \
    if (gpu_answer != NVML_SUCCESS)                        \
        return gpu_answer

/* The same for what NVML does not say about a MIG device: one asks its GPU. */
#define WHOLE_GPU_OR_RETURN(device)           \
    GPU_OR_RETURN(device);                    \
    if (gpu.is_instance)                      \
        return NVML_ERROR_INVALID_ARGUMENT

#define CHECK_ARGUMENT(condition)                 \
    do {                                          \
        if (!(condition))                         \
            return NVML_ERROR_INVALID_ARGUMENT;   \
    } while (0)

static inline nvmlReturn_t answer_text(const char *text, char *out, unsigned size)
{
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

/* A number that does not depend on the GPU's state, only on the GPU being there. */
static inline nvmlReturn_t answer_number(nvmlDevice_t device, unsigned *out, unsigned value)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(out != NULL);
    *out = value;
    return NVML_SUCCESS;
}

#endif
