/* Calls about temperature, power, clocks, load and the PCIe link: an idle card's values, busy while processes run.
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: gpushare.kubernetes contributors
 */
#include "answer.h"

enum { IDLE_MILLIWATT = 14000, LIMIT_MILLIWATT = 70000, MINIMUM_MILLIWATT = 60000 };
enum { IDLE_CELSIUS = 34, BUSY_CELSIUS = 56, SLOWDOWN_CELSIUS = 93, SHUTDOWN_CELSIUS = 96 };
enum { PCIE_GENERATION = 3, PCIE_WIDTH = 16 };

static bool busy(const struct card *card) { return card->process_count > 0; }

/* Defines a call that answers one number from `card`. */
#define NUMBER_OF_CARD(name, type, expression)               \
    API nvmlReturn_t name(nvmlDevice_t device, type *out)    \
    {                                                        \
        CARD_OR_RETURN(device);                              \
        CHECK_ARGUMENT(out != NULL);                         \
        *out = (type)(expression);                           \
        return NVML_SUCCESS;                                 \
    }

NUMBER_OF_CARD(nvmlDeviceGetPerformanceState, unsigned, busy(&card) ? 0 : 8)
NUMBER_OF_CARD(nvmlDeviceGetPowerState, unsigned, busy(&card) ? 0 : 8)
NUMBER_OF_CARD(nvmlDeviceGetPowerUsage, unsigned, busy(&card) ? LIMIT_MILLIWATT / 2 : IDLE_MILLIWATT)
NUMBER_OF_CARD(nvmlDeviceGetPowerManagementMode, unsigned, 1)
NUMBER_OF_CARD(nvmlDeviceGetPowerManagementLimit, unsigned, LIMIT_MILLIWATT)
NUMBER_OF_CARD(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, LIMIT_MILLIWATT)
NUMBER_OF_CARD(nvmlDeviceGetEnforcedPowerLimit, unsigned, LIMIT_MILLIWATT)
NUMBER_OF_CARD(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, 1000000)
NUMBER_OF_CARD(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, busy(&card) ? PCIE_GENERATION : 1)
NUMBER_OF_CARD(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, PCIE_GENERATION)
NUMBER_OF_CARD(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, PCIE_GENERATION)
NUMBER_OF_CARD(nvmlDeviceGetCurrPcieLinkWidth, unsigned, PCIE_WIDTH)
NUMBER_OF_CARD(nvmlDeviceGetMaxPcieLinkWidth, unsigned, PCIE_WIDTH)
NUMBER_OF_CARD(nvmlDeviceGetPcieReplayCounter, unsigned, 0)
NUMBER_OF_CARD(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, busy(&card) ? 0 : 1)
NUMBER_OF_CARD(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, busy(&card) ? 0 : 1)
NUMBER_OF_CARD(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, 0x1ff)
NUMBER_OF_CARD(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, 0x1ff)
NUMBER_OF_CARD(nvmlDeviceGetAccountingMode, unsigned, 0)
NUMBER_OF_CARD(nvmlDeviceGetAccountingBufferSize, unsigned, 4000)

API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *minimum, unsigned *maximum)
{
    CARD_OR_RETURN(device);
    CHECK_ARGUMENT(minimum != NULL && maximum != NULL);
    *minimum = MINIMUM_MILLIWATT;
    *maximum = LIMIT_MILLIWATT;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius)
{
    CARD_OR_RETURN(device);
    CHECK_ARGUMENT(celsius != NULL && sensor == 0);
    *celsius = busy(&card) ? BUSY_CELSIUS : IDLE_CELSIUS;
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
    CARD_OR_RETURN(device);
    CHECK_ARGUMENT(celsius != NULL);
    if (threshold > SLOWDOWN)
        return NVML_ERROR_NOT_SUPPORTED;
    *celsius = threshold == SHUTDOWN ? SHUTDOWN_CELSIUS : SLOWDOWN_CELSIUS;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    CARD_OR_RETURN(device);
    CHECK_ARGUMENT(utilization != NULL);
    *utilization = busy(&card) ? (nvmlUtilization_t){80, 40} : (nvmlUtilization_t){0, 0};
    return NVML_SUCCESS;
}

/* Encoder, decoder, JPEG, optical flow: never used here. */
static nvmlReturn_t idle_engine(nvmlDevice_t device, unsigned *percent, unsigned *period_us)
{
    CARD_OR_RETURN(device);
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
    CARD_OR_RETURN(device);
    CHECK_ARGUMENT(mhz != NULL && type < CLOCK_COUNT);
    *mhz = busy(&card) ? max_mhz[type] : idle_mhz[type];
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
    CARD_OR_RETURN(device);
    CHECK_ARGUMENT(count >= 0 && values != NULL);
    for (int i = 0; i < count; i++)
        values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}
