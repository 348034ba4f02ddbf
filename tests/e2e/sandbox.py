# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Programs that run in the sandbox of a unit, to see what it forbids."""

from __future__ import annotations

# Run in the control groups and the mounts of a unit's process, but with all of root's powers: what they forbid is forbidden to it.
INSIDE = """
import errno, json, os, sys
said = {}
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK if path.startswith("/dev/") else os.O_WRONLY | os.O_CREAT, 0o600))
        said[path] = ""
    except OSError as error:
        said[path] = errno.errorcode[error.errno]
print(json.dumps(said))
"""

ENTER = """
pid=$1; shift
for group in $(sed -n 's/^[0-9]*:devices:/devices/p; s/^0:://p' "/proc/$pid/cgroup"); do
  procs=/sys/fs/cgroup/$group/cgroup.procs
  if [ -w "$procs" ]; then echo $$ > "$procs"; fi
done
exec nsenter -t "$pid" -m python3 -c "$@"
"""
