/* libcuda.so.1 as far as the lab needs one: a file to mount, and a client of a simulated MPS control daemon. No GPU computes here.
 * Without a daemon it says that there is none.
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: gpushare.kubernetes contributors
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

/* The numbers of cuda.h. */
enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_MPS_CONNECTION_FAILED = 805,
    CUDA_ERROR_MPS_SERVER_NOT_READY = 807
};

API int cuInit(unsigned flags);
API int cuDriverGetVersion(int *version);
API int cuDeviceGet(int *device, int ordinal);
API int cuCtxCreate_v2(void **context, unsigned flags, int device);
API int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
API int cuMemsetD8_v2(unsigned long long address, unsigned char value, size_t bytes);
API int cuCtxSynchronize(void);
API int cuCtxDestroy_v2(void *context);

/* To the daemon, for as long as the process lives; -1 before. */
static int daemon_socket = -1;

static int connected(void)
{
    return daemon_socket < 0 ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
}

int cuInit(unsigned flags)
{
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char text[32];
    int made, length;
    ssize_t got;

    (void)flags;
    if (!folder)
        return CUDA_ERROR_NO_DEVICE;
    length = snprintf(address.sun_path, sizeof address.sun_path, "%s/control", folder);
    if (length < 0 || (size_t)length >= sizeof address.sun_path)
        return CUDA_ERROR_MPS_CONNECTION_FAILED;
    made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made < 0 || connect(made, (struct sockaddr *)&address, sizeof address)) {
        if (made >= 0)
            close(made);
        return CUDA_ERROR_MPS_CONNECTION_FAILED;
    }
    length = snprintf(text, sizeof text, "connect %d", (int)getpid());
    if (send(made, text, (size_t)length, MSG_NOSIGNAL) != length) {
        close(made);
        return CUDA_ERROR_MPS_CONNECTION_FAILED;
    }
    do
        got = recv(made, text, sizeof text, 0);
    while (got < 0 && errno == EINTR);
    if (got < 2 || memcmp(text, "ok", 2)) {
        close(made);
        return CUDA_ERROR_MPS_SERVER_NOT_READY;
    }
    daemon_socket = made;
    return CUDA_SUCCESS;
}

int cuDriverGetVersion(int *version)
{
    *version = 12020;
    return CUDA_SUCCESS;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return connected();
}

int cuCtxCreate_v2(void **context, unsigned flags, int device)
{
    (void)flags;
    (void)device;
    *context = &daemon_socket;
    return connected();
}

int cuMemAlloc_v2(unsigned long long *address, size_t bytes)
{
    (void)bytes;
    *address = 1;
    return connected();
}

int cuMemsetD8_v2(unsigned long long address, unsigned char value, size_t bytes)
{
    (void)address;
    (void)value;
    (void)bytes;
    return connected();
}

int cuCtxSynchronize(void)
{
    return connected();
}

int cuCtxDestroy_v2(void *context)
{
    (void)context;
    return connected();
}
