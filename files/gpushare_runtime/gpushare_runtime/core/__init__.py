# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What pods ask for, what cards there are, who has which, and which card is next. Standard library only: no I/O, clock or log."""
