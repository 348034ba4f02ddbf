# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The callback `fleet` through Ansible itself: a line for what hosts have in common, and nothing of what is as it was."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from playbooks.play import play

PLAYBOOK = """
- name: Change some
  hosts: all
  gather_facts: false
  serial: [1, 3, 100%]
  max_fail_percentage: 100
  tasks:
    - name: Fail where it is planned
      ansible.builtin.fail:
        msg: |-
          as planned
          by two lines
      when: inventory_hostname in ["gpu2", "gpu3"]

    - name: Leave all as it is
      ansible.builtin.debug:
        msg: nothing

    - name: Change the even ones
      ansible.builtin.debug:
        msg: done
      changed_when: inventory_hostname[-1] | int is even

    - name: Not heard
      ansible.builtin.fail:
        msg: nobody minds
      ignore_errors: true

    - name: Fail in a loop
      ansible.builtin.fail:
        msg: "the item {{ item }}"
      loop: [1, 2]
      when: inventory_hostname == "gpu8" and item == 2
"""


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("ANSIBLE_STDOUT_CALLBACK", "gpushare.kubernetes.fleet")
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    done = play(tmp_path, tmp_path / "play.yml", {"gpus": {f"gpu{number}": {} for number in range(1, 10)}})
    assert done.returncode == 2, done.stdout + done.stderr
    return re.sub(r"\d+:\d\d", "M:SS", done.stdout).splitlines()


def test_hosts_of_which_the_same_is_to_be_said_have_one_line(lines: list[str]) -> None:
    assert lines == [
        "M:SS  Change some: batch 1, hosts 1 to 1 of 9",
        "M:SS  Change some: batch 2, hosts 2 to 4 of 9, about M:SS left",
        "  FAILED  Fail where it is planned: gpu2, gpu3: as planned",
        "by two lines",
        "  changed  Change the even ones: gpu4",
        "M:SS  Change some: batch 3, hosts 5 to 9 of 9, about M:SS left",
        "  changed  Change the even ones: gpu6, gpu8",
        "  FAILED  Fail in a loop: gpu8: the item 2",
        "M:SS  4 of 9 hosts as they were, 2 changed, 3 not done",
        "  not done  Fail where it is planned: gpu2, gpu3",
        "  not done  Fail in a loop: gpu8",
    ]


def test_with_v_it_is_ansibles_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSIBLE_STDOUT_CALLBACK", "gpushare.kubernetes.fleet")
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    done = play(tmp_path, tmp_path / "play.yml", {"gpus": {"gpu1": {}}}, "-v")
    assert "TASK [Leave all as it is]" in done.stdout
    assert "PLAY RECAP" in done.stdout
