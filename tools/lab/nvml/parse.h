/* Reading the state file's text: see README.md for the format.
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: gpushare.kubernetes contributors
 */
#ifndef GPUSHARE_LAB_NVML_PARSE_H
#define GPUSHARE_LAB_NVML_PARSE_H

#include <stdio.h>

#include "state.h"

struct state {
    struct driver driver;
    unsigned gpu_count;
    struct gpu gpus[MAX_GPUS];
    unsigned xid_count;
    struct xid xids[MAX_XIDS];
};

/* False, with the reason and the line in `error`, if the text is not a whole state. */
bool parse_state(FILE *file, struct state *out, char *error, size_t error_size);

#endif
