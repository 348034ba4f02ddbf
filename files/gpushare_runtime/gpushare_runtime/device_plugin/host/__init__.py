# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What is read from and kept on this host: processes of pods, and the file that outlives the daemon."""
