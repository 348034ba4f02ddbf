# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""One step, in a process of its own: it may hang or crash in the driver. `python -m gpu_proof.child MODULE CONTEXT FINDINGS`."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path

from gpu_proof.context import Context
from gpu_proof.findings import Findings, NotPossible


def main() -> int:
    module, context, file = sys.argv[1:]
    findings = Findings(Path(file))
    findings.save()
    try:
        importlib.import_module(module).run(Context.from_json(Path(context).read_text()), findings)
    except NotPossible as error:
        findings.impossible = str(error)
    except Exception as error:
        findings.error = f"{type(error).__name__}: {error}"[:500]
        traceback.print_exc()
    findings.save()
    return 0


if __name__ == "__main__":
    sys.exit(main())
