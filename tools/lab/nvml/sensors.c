/* Calls about temperature, power, clocks, load and the PCIe link: an idle GPU's values, busy while processes run.
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: gpushare.kubernetes contributors
 */
#define _POSIX_C_SOURCE 200809L
#include <time.h>

#include "answer.h"

enum { IDLE_MILLIWATT = 14000, LIMIT_MILLIWATT = 70000, MINIMUM_MILLIWATT = 60000 };
enum { IDLE_CELSIUS = 34, BUSY_CELSIUS = 56, SLOWDOWN_CELSIUS = 93, SHUTDOWN_CELSIUS = 96 };
enum { PCIE_GENERATION = 3, PCIE_WIDTH = 16 };

static bool busy(const struct gpu *gpu) { return gpu->process_count > 0; }

/* Defines a call that answers one number from `gpu`. */
#define NUMBER_OF_GPU(name, type, expression)               \
    API nvmlReturn_t name(nvmlDevice_t device, type *out)    \
    {                                                        \
        GPU_OR_RETURN(device);                              \
        CHECK_ARGUMENT(out != NULL);                         \
        *out = (type)(expression);                           \
        return NVML_SUCCESS;                                 \
    }

NUMBER_OF_GPU(nvmlDeviceGetPerformanceState, unsigned, busy(&gpu) ? 0 : 8)
NUMBER_OF_GPU(nvmlDeviceGetPowerState, unsigned, busy(&gpu) ? 0 : 8)
NUMBER_OF_GPU(nvmlDeviceGetPowerUsage, unsigned, busy(&gpu) ? LIMIT_MILLIWATT / 2 : IDLE_MILLIWATT)
NUMBER_OF_GPU(nvmlDeviceGetPowerManagementMode, unsigned, 1)
NUMBER_OF_GPU(nvmlDeviceGetPowerManagementLimit, unsigned, LIMIT_MILLIWATT)
NUMBER_OF_GPU(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, LIMIT_MILLIWATT)
NUMBER_OF_GPU(nvmlDeviceGetEnforcedPowerLimit, unsigned, LIMIT_MILLIWATT)
NUMBER_OF_GPU(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, 1000000)
NUMBER_OF_GPU(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, busy(&gpu) ? PCIE_GENERATION : 1)
NUMBER_OF_GPU(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, PCIE_GENERATION)
NUMBER_OF_GPU(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, PCIE_GENERATION)
NUMBER_OF_GPU(nvmlDeviceGetCurrPcieLinkWidth, unsigned, PCIE_WIDTH)
NUMBER_OF_GPU(nvmlDeviceGetMaxPcieLinkWidth, unsigned, PCIE_WIDTH)
NUMBER_OF_GPU(nvmlDeviceGetPcieReplayCounter, unsigned, 0)
NUMBER_OF_GPU(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, busy(&gpu) ? 0 : 1)
NUMBER_OF_GPU(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, busy(&gpu) ? 0 : 1)
NUMBER_OF_GPU(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, 0x1ff)
NUMBER_OF_GPU(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, 0x1ff)
NUMBER_OF_GPU(nvmlDeviceGetAccountingMode, unsigned, 0)
NUMBER_OF_GPU(nvmlDeviceGetAccountingBufferSize, unsigned, 4000)

API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *minimum, unsigned *maximum)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(minimum != NULL && maximum != NULL);
    *minimum = MINIMUM_MILLIWATT;
    *maximum = LIMIT_MILLIWATT;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(celsius != NULL && sensor == 0);
    *celsius = busy(&gpu) ? BUSY_CELSIUS : IDLE_CELSIUS;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *temperature)
{
    unsigned celsius;
    CHECK_ARGUMENT(temperature != NULL);
    if (temperature->version != STRUCT_VERSION(nvmlTemperature_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t answer = nvmlDeviceGetTemperature(device, temperature->sensorType, &celsius);
    if (answer == NVML_SUCCESS)
        temperature->temperature = (int)celsius;
    return answer;
}

API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned threshold, unsigned *celsius)
{
    enum { SHUTDOWN, SLOWDOWN };
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(celsius != NULL);
    if (threshold > SLOWDOWN)
        return NVML_ERROR_NOT_SUPPORTED;
    *celsius = threshold == SHUTDOWN ? SHUTDOWN_CELSIUS : SLOWDOWN_CELSIUS;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(utilization != NULL);
    if (gpu.mig_mode)
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned sm = 0, memory = 0;
    for (unsigned i = 0; i < gpu.process_count; i++)
        sm += gpu.processes[i].sm, memory += gpu.processes[i].memory;
    /* Of processes of which nothing is said, something. */
    if (busy(&gpu) && sm + memory == 0)
        sm = 80, memory = 40;
    *utilization = (nvmlUtilization_t){sm > 100 ? 100 : sm, memory > 100 ? 100 : memory};
    return NVML_SUCCESS;
}

static unsigned long long microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
}

/* The older call leaves out those that were busy with nothing, and says that it has found nothing where that leaves none. Its samples are
 * of the moment: the driver's are means since then. On a GPU with MIG neither answers. */
API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *list, unsigned *count,
                                                 unsigned long long since)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(count != NULL);
    if (gpu.mig_mode || gpu.loads != LOADS_OLD)
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned number = 0, room = *count;
    unsigned long long now = microseconds();
    for (unsigned i = 0; i < gpu.process_count; i++) {
        struct process *process = &gpu.processes[i];
        if (now <= since || process->sm + process->memory + process->encoder + process->decoder == 0)
            continue;
        if (list != NULL && number < room)
            list[number] = (nvmlProcessUtilizationSample_t){process->pid, now, process->sm, process->memory, process->encoder, process->decoder};
        number++;
    }
    *count = number;
    return number == 0 ? NVML_ERROR_NOT_FOUND : list == NULL || number > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *info)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(info != NULL);
    if (info->version != STRUCT_VERSION(nvmlProcessesUtilizationInfo_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (gpu.mig_mode || gpu.loads != LOADS_NEW)
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned room = info->processSamplesCount;
    unsigned long long now = microseconds();
    info->processSamplesCount = gpu.process_count;
    if (gpu.process_count == 0 || now <= info->lastSeenTimeStamp)
        return NVML_ERROR_NOT_FOUND;
    if (info->procUtilArray == NULL || gpu.process_count > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < gpu.process_count; i++) {
        struct process *process = &gpu.processes[i];
        info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
            now, process->pid, process->sm, process->memory, process->encoder, process->decoder, 0, 0};
    }
    return NVML_SUCCESS;
}

/* Encoder, decoder, JPEG, optical flow: never used here. */
static nvmlReturn_t idle_engine(nvmlDevice_t device, unsigned *percent, unsigned *period_us)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(percent != NULL && period_us != NULL);
    *percent = 0;
    *period_us = 167000;
    return NVML_SUCCESS;
}

#define IDLE_ENGINE(name) \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned *percent, unsigned *us) { return idle_engine(device, percent, us); }

IDLE_ENGINE(nvmlDeviceGetEncoderUtilization)
IDLE_ENGINE(nvmlDeviceGetDecoderUtilization)
IDLE_ENGINE(nvmlDeviceGetJpgUtilization)
IDLE_ENGINE(nvmlDeviceGetOfaUtilization)

enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY, CLOCK_VIDEO, CLOCK_COUNT };
static const unsigned max_mhz[CLOCK_COUNT] = {1590, 1590, 5001, 1470};
static const unsigned idle_mhz[CLOCK_COUNT] = {300, 300, 405, 540};

API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(mhz != NULL && type < CLOCK_COUNT);
    *mhz = busy(&gpu) ? max_mhz[type] : idle_mhz[type];
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
    CHECK_ARGUMENT(type < CLOCK_COUNT);
    return answer_number(device, mhz, max_mhz[type]);
}

API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter, unsigned *kib_per_second)
{
    (void)counter;
    return answer_number(device, kib_per_second, 0);
}

/* Every field is answered in its own entry: none is known here. */
API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    GPU_OR_RETURN(device);
    CHECK_ARGUMENT(count >= 0 && values != NULL);
    for (int i = 0; i < count; i++)
        values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}
