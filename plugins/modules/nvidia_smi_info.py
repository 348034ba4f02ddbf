#!/usr/bin/python
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_smi_info
short_description: List the NVIDIA GPUs of a host
version_added: 0.1.0
description:
  - Runs C(nvidia-smi -q -x) and returns the GPUs with their state, the processes on them with their pods, and the versions of driver
    and CUDA. Reads the output of every driver since 384.
  - The module does not fail on a host without GPUs or driver. RV(problem) then states what was found and what to do. The PCI bus, the
    kernel modules on disk and C(dmesg) distinguish causes that nvidia-smi reports by the same message.
  - Returns facts only. The roles C(preflight) and C(verify) compare them with C(gpushare_minimum_driver), C(gpushare_expect_gpus) and
    C(gpushare_expect_memory_mib).
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
options:
  nvidia_smi: {description: Name or path of nvidia-smi., type: str, default: nvidia-smi}
  timeout:
    description:
      - Timeout of nvidia-smi in seconds.
      - Without a persistence daemon it first initialises every GPU.
    type: int
    default: 120
"""

EXAMPLES = r"""
- name: List the GPUs
  gpushare.kubernetes.nvidia_smi_info:
  register: gpus

- name: Stop where they cannot be used
  ansible.builtin.fail:
    msg: "Found {{ gpus.problem.found }}; {{ gpus.problem.cure }}"
  when: gpus.problem is not none
"""

RETURN = r"""
gpus:
  description: The GPUs by NVML index. A value that the driver does not know is null.
  returned: success
  type: list
  elements: dict
  contains:
    index: {description: NVML's index., type: int, sample: 0}
    uuid: {description: UUID., type: str, sample: GPU-e9361bd4-fd7c-e351-66ae-c0cb0152d66a}
    minor: {description: Number of its device node., type: int, sample: 0}
    pci: {description: "PCI address: domain, bus, device, function.", type: str, sample: "0000:04:00.0"}
    model: {description: Product name., type: str, sample: Tesla T4}
    memory_mib: {description: All of its memory in MiB., type: int, sample: 15360}
    compute_mode: {description: Compute mode as nvidia-smi writes it., type: str, sample: Default}
    architecture: {description: Generation of the GPU. Null for drivers before 495., type: str, sample: Turing}
    mig_mode: {description: V(enabled) or V(disabled); null for a GPU without MIG., type: str, sample: disabled}
    pending_mig_mode: {description: The same after the next reset of the GPU., type: str, sample: disabled}
    mig_devices:
      description: MIG instances, each with C(index), C(gpu_instance), C(compute_instance) and C(memory_mib).
      type: list
      elements: dict
    processes:
      description: Processes on the GPU.
      type: list
      elements: dict
      contains:
        pid: {description: PID., type: int}
        kind: {description: "V(C) for compute, V(G) for graphics, or V(C+G).", type: str, sample: C}
        name: {description: "Command, at most 200 characters of it.", type: str}
        memory_mib: {description: Its memory on the GPU in MiB., type: int}
        pod_uid: {description: UID of its pod. Null for a process outside of pods., type: str}
        pod_namespace: {description: Namespace of the pod., type: str}
        pod_name: {description: Name of the pod., type: str}
    ecc:
      description: Error correction. A GPU without it has null everywhere.
      type: dict
      contains:
        mode: {description: V(enabled) or V(disabled)., type: str}
        pending_mode: {description: The same after the next reset of the GPU., type: str}
        volatile_corrected: {description: Number of corrected errors since the driver was loaded., type: int}
        volatile_uncorrected: {description: Number of uncorrected errors since the driver was loaded., type: int}
        aggregate_corrected: {description: Number of corrected errors over the life of the GPU., type: int}
        aggregate_uncorrected: {description: Number of uncorrected errors over the life of the GPU., type: int}
    repair:
      description: Memory that the GPU no longer uses.
      type: dict
      contains:
        retired_pages: {description: Number of retired pages. Null from Ampere on., type: int}
        remapped_rows: {description: Number of remapped rows. Null before Ampere., type: int}
        pending: {description: Whether a retirement or a remapping waits for the next reset., type: bool}
        failed: {description: Whether a remapping failed or the GPU has memory that it cannot repair., type: bool}
        action: {description: "Action that the driver requests, such as V(Reset) or V(Reboot). Null for none.", type: str}
driver_version: {description: Version of the driver., returned: success, type: str, sample: 535.261.03}
cuda_version:
  description: The newest CUDA that the driver serves. Null for drivers that do not report it (before 410).
  returned: success
  type: str
  sample: "12.2"
problem:
  description: Why the GPUs cannot be used as they are, null if they can. GPUs may be listed nevertheless.
  returned: success
  type: dict
  contains:
    kind:
      description:
        - V(not_installed), V(driver_container), V(driver_not_loaded), V(nouveau), V(module_missing), V(secure_boot), V(wrong_module),
          V(unsupported_gpu), V(version_mismatch), V(library_missing), V(no_devices), V(gpu_lost), V(reset_required),
          V(devices_denied), V(no_permission), V(timeout), V(unreadable) or V(failed).
      type: str
      sample: version_mismatch
    found: {description: The state that was found., type: str}
    expected: {description: The required state., type: str}
    cure: {description: The action to take., type: str}
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._facts.gpus import gpus
from ..module_utils._facts.nvidia_smi import TIMEOUT, SmiReport
from ..module_utils._formats.answers import answer_of
from ..module_utils._host.host import Host


def answer(module: AnsibleModule) -> SmiReport:
    """Ask nvidia-smi."""
    return gpus(Host(), module.params["nvidia_smi"], module.params["timeout"])


OPERATIONS = {"": answer}


def main() -> None:
    module = AnsibleModule(
        argument_spec={"nvidia_smi": {"type": "str", "default": "nvidia-smi"}, "timeout": {"type": "int", "default": TIMEOUT}},
        supports_check_mode=True,
    )
    module.exit_json(changed=False, **answer_of(answer(module)))


if __name__ == "__main__":
    main()
