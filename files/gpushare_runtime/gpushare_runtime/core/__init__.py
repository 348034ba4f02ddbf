# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What pods ask for, what GPUs there are, who has which, and which GPU is next. Standard library only: no I/O, clock or log."""
