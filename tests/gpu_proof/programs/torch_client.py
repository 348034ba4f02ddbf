# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The program of workload.py with the machine's own PyTorch. It imports nothing else, because it runs in the machine's Python."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch  # type: ignore[import-not-found]

MIB = 1024 * 1024
_WARM_SECONDS = 1.0


class Client:
    """kept: tensors that stay allocated."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._once: dict[str, Any] = {}

    def hold(self, mib: str) -> dict[str, Any]:
        self._kept.append(torch.empty(int(mib) * MIB, dtype=torch.uint8, device="cuda"))
        torch.cuda.synchronize()
        return {"allocated_mib": torch.cuda.memory_reserved() // MIB}

    def allocate(self, step: str, most: str) -> dict[str, Any]:
        allocated = 0
        while allocated < int(most):
            try:
                self._kept.append(torch.empty(int(step) * MIB, dtype=torch.uint8, device="cuda"))
            except torch.cuda.OutOfMemoryError:
                return {"allocated_mib": allocated, "error": "CUDA_ERROR_OUT_OF_MEMORY"}
            allocated += int(step)
        return {"allocated_mib": allocated}

    def kinds(self) -> dict[str, Any]:
        torch.cuda.init()
        return {"kinds": ["matrix-product", "transformer"], "framework": f"PyTorch {torch.__version__}"}

    def work(self, kind: str, seconds: str) -> dict[str, Any]:
        if kind not in self._once:
            self._once[kind] = self._transformer() if kind == "transformer" else self._product()
            # What is compiled and loaded at first use, and the GPU's clocks, as the measured second finds them.
            self.work(kind, str(_WARM_SECONDS))
        began, units = time.monotonic(), 0
        with torch.inference_mode():
            while (now := time.monotonic() - began) < float(seconds):
                self._once[kind]()
                torch.cuda.synchronize()
                units += 1
        return {"units": units, "seconds": now}

    def _product(self) -> Any:
        left, right = (torch.randn(4096, 4096, device="cuda", dtype=torch.float16) for _ in range(2))
        return lambda: left @ right

    def _transformer(self) -> Any:
        layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
        model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).to("cuda", torch.float16).eval()
        batch = torch.randn(8, 128, 512, device="cuda", dtype=torch.float16)
        return lambda: model(batch)


def main() -> int:
    client = Client()
    for line in sys.stdin:
        name, *arguments = line.split()
        try:
            answer = getattr(client, name)(*arguments)
        except torch.cuda.OutOfMemoryError:
            answer = {"allocated_mib": 0, "error": "CUDA_ERROR_OUT_OF_MEMORY"}
        except (RuntimeError, AssertionError) as error:
            answer = {"allocated_mib": 0, "units": 0, "seconds": 0.0, "kinds": [], "error": str(error).splitlines()[0][:200]}
        print(json.dumps({"error": "", **answer}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
