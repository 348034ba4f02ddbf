# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The container image of the runtime, made from Debian's packages and our locked wheels without a container tool."""
