# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""State on this host: the processes of pods, and the file for the plugin's next process."""
