# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Access to the Kubernetes API as raw JSON: credentials, requests, list and watch, events."""
