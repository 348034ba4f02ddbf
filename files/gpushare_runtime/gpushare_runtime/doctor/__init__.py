# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare-doctor: what is wrong with the gpushare daemons of the host on which it runs.

The doctor judges what only this code knows of its own daemons: the files of the runtime, the units and their processes, tokens,
certificates, the extender's health report, metrics, and the device plugin's registration with kubelet. It reads all paths and addresses
from the units, so it needs no inventory. The playbook verify runs it on each host. verify itself judges the rest: driver, container
runtime, kubelet, scheduler, admission, the cluster as a whole, the inventory's wishes, and whether the runtime with this doctor is
there and is the one that the collection ships.
"""
