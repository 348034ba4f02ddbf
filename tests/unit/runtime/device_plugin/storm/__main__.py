# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The command: see play.py."""

from unit.runtime.device_plugin.storm.play import main

if __name__ == "__main__":
    raise SystemExit(main())
