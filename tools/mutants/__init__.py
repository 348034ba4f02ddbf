# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which single mistakes in the core the unit tests would not notice: docs/project/mutants.md."""
