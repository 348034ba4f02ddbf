# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The proof on a real GPU: `make gpu-proof`, see docs/project/gpu-proof.md."""
