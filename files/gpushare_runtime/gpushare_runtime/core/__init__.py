# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The requests of pods, the GPUs, who has which, and which GPU is next. Standard library only: no I/O, clock or log."""
