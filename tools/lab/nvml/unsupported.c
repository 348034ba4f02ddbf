/* Every other public call of NVML: there, and not supported. Weak, so that a real answer elsewhere takes its place.
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: gpushare.kubernetes contributors
 */
#include "nvml_api.h"

#define CALL(name)                          \
    API __attribute__((weak)) nvmlReturn_t name(void); \
    nvmlReturn_t name(void) { return NVML_ERROR_NOT_SUPPORTED; }

#include "names.inc"
