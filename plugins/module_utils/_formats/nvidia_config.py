# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two settings of NVIDIA's config.toml that say how a container may ask for GPUs, and why they stand together."""

from __future__ import annotations

from typing import Mapping

CONFIG = "/etc/nvidia-container-runtime/config.toml"
MOUNTS_KEY = "accept-nvidia-visible-devices-as-volume-mounts"
ENVIRONMENT_KEY = "accept-nvidia-visible-devices-envvar-when-unprivileged"
#: Containers that are not privileged get a GPU only by what kubelet hands over, not by what their image or their pod says. With the first
#: alone the device plugin in the cluster, which is not privileged, sees no GPU; with the second alone the variable still works.
STRICT: Mapping[str, bool] = {ENVIRONMENT_KEY: False, MOUNTS_KEY: True}
STRICT_IN_WORDS = " and ".join(f"{name} = {str(value).lower()}" for name, value in STRICT.items())
