# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare_judge: its documentation has the options of its subjects, which only its action plugin reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpushare.kubernetes.plugins.action.gpushare_judge import JUDGES
from ansible_collections.gpushare.kubernetes.plugins.doc_fragments.bundle import ModuleDocFragment

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "plugins/modules/gpushare_judge.py").read_text()
DOCUMENTED: dict[str, dict[str, Any]] = yaml.safe_load(TEXT.partition('DOCUMENTATION = r"""')[2].partition('"""')[0])["options"]
DOCUMENTED |= yaml.safe_load(ModuleDocFragment.DOCUMENTATION)["options"]


def test_each_option_of_a_subject_is_documented_as_it_is() -> None:
    assert DOCUMENTED["what"]["choices"] == list(JUDGES)
    assert set(DOCUMENTED) == {"what", *(name for judge in JUDGES.values() for name in judge.options)}
    for what, judge in JUDGES.items():
        for name, option in judge.options.items():
            documented = DOCUMENTED[name]
            for key in ("type", "elements", "choices", "default"):
                # Of the host where the module goes to the API server, which expands it.
                expected = "path" if (name, key, option["type"]) == ("kubeconfig", "type", "str") else option.get(key)
                assert documented.get(key) == expected, (what, name, key)
            told = " ".join([documented["description"]] if isinstance(documented["description"], str) else documented["description"])
            required = told.rpartition(". ")[2] if told.endswith(("require it.", "requires it.")) else ""
            assert (f"V({what})" in required) == option.get("required", False), (what, name)
