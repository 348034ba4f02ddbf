/* libcuda.so.1 as far as the lab needs one: a file to mount. No GPU computes here, and it says so.
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: gpushare.kubernetes contributors
 */
#define API __attribute__((visibility("default")))

enum { CUDA_ERROR_NO_DEVICE = 100 };

API int cuInit(unsigned flags);
API int cuDriverGetVersion(int *version);

int cuInit(unsigned flags)
{
    (void)flags;
    return CUDA_ERROR_NO_DEVICE;
}

int cuDriverGetVersion(int *version)
{
    *version = 12020;
    return 0;
}
