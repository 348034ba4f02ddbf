# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What nvidia-smi prints, of several generations of drivers, healthy and not; and that no output makes the parser fail.

The 535 outputs are recordings of the real nvidia-smi 535.261.03 on the lab's simulated GPUs. Those of other generations are written
by hand with the tags of their document types: 384 (v8), 470 (v11), 550 (v12), 580 and 610 (v13). The GPU that is lost has the words of the
recordings in NVIDIA/k8s-test-infra, tests/e2e/go/assertions/nvidiasmi/testdata. The parser was also run on the recordings of real GPUs
there (drivers 570, 580, 595) and in influxdata/telegraf, plugins/inputs/nvidia_smi/testdata (418 to 595): it reads each of them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.nvidia_smi import (
    Ecc,
    MigDevice,
    Process,
    Repair,
    SharedGpu,
    SmiOutputError,
    SmiReport,
    instance_index,
    parse,
    report,
    with_instances,
)
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.versions import numbers
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import Outcome
from hypothesis import given
from hypothesis import strategies as st

from gpushare_runtime.core import inventory

FIXTURES = Path(__file__).parents[1] / "fixtures"
ARGV = ["/usr/bin/nvidia-smi", "-q", "-x"]


def read(name: str) -> str:
    return (FIXTURES / f"nvidia_smi_{name}.xml").read_text()


def test_535_as_recorded() -> None:
    found = report(Outcome(ARGV, 0, read("535_two_gpus")))
    assert (found.driver_version, found.cuda_version, found.problem) == ("535.261.03", "12.2", None)
    first, second = found.gpus
    assert (first.index, first.uuid, first.minor) == (0, "GPU-e9361bd4-fd7c-e351-66ae-c0cb0152d66a", 0)
    assert (first.pci, first.model, first.memory_mib) == ("0000:04:00.0", "Tesla T4", 16384)
    assert (first.compute_mode, first.mig_mode, first.mig_devices) == ("Default", None, ())
    assert first.processes == (Process(4242, "C", "python train.py", 512),)
    assert (second.index, second.model, second.memory_mib, second.mig_mode) == (1, "NVIDIA A30", 24576, "disabled")


def test_384_has_no_cuda_version_and_prints_process_names_as_they_are() -> None:
    found = report(Outcome(ARGV, 0, read("384_two_gpus")))
    assert (found.driver_version, found.cuda_version, found.problem) == ("384.111", None, None)
    assert [gpu.pci for gpu in found.gpus] == ["0000:3b:00.0", "0000:d8:00.0"]
    assert [gpu.memory_mib for gpu in found.gpus] == [16276, 8114]
    assert found.gpus[1].compute_mode == "Exclusive_Process"
    assert found.gpus[1].processes == (Process(4711, "C", 'sh -c "a < b && c"', None),)


def test_470_with_mig() -> None:
    (gpu,) = parse(read("470_mig")).gpus
    assert (gpu.minor, gpu.mig_mode, gpu.memory_mib) == (3, "enabled", 40536)
    assert gpu.mig_devices == (MigDevice(0, 1, 0, 20096), MigDevice(1, 5, 0, None))


LISTING = """GPU 0: NVIDIA A100-PCIE-40GB (UUID: GPU-cccccccc-1111-2222-3333-444444444444)
  MIG 3g.20gb     Device  0: (UUID: MIG-bebec2de-8de4-9d38-7720-3aa73ea9b379)
  MIG 1c.2g.10gb  Device  1: (UUID: MIG-4be6b34d-c02a-5a97-9545-5b3864423808)
GPU 1: Tesla T4 (UUID: GPU-e9361bd4-fd7c-e351-66ae-c0cb0152d66a)
"""
MINORS = "config 1\nmonitor 2\ngpu3/gi1/access 417\ngpu3/gi1/ci0/access 418\ngpu3/gi5/access 453\ngpu3/gi5/ci0/access 454\n"


def test_mig_instances_are_named_by_the_list_of_nvidia_smi_and_the_driver() -> None:
    found = with_instances(parse(read("470_mig")), LISTING, MINORS)
    assert SmiReport.from_dict(json.loads(json.dumps(found.as_dict()))) == found
    model = found.gpus[0].model
    assert found.shared == (
        SharedGpu(
            10010,
            "MIG-bebec2de-8de4-9d38-7720-3aa73ea9b379",
            f"{model} MIG 3g.20gb",
            20096,
            ("nvidia3", "nvidia-caps/nvidia-cap417", "nvidia-caps/nvidia-cap418"),
        ),
        SharedGpu(
            10050,
            "MIG-4be6b34d-c02a-5a97-9545-5b3864423808",
            f"{model} MIG 1c.2g.10gb",
            None,
            ("nvidia3", "nvidia-caps/nvidia-cap453", "nvidia-caps/nvidia-cap454"),
        ),
    )
    assert [instance_index(*place) for place in ((0, 13, 0), (3, 1, 2))] == [inventory.instance_index(0, 13, 0), 13012]
    # Without the lists nobody knows them, and another driver's list is of others.
    assert with_instances(parse(read("470_mig")), "", MINORS).shared == ()
    assert [one.nodes for one in with_instances(parse(read("470_mig")), LISTING, "x\n1 2 3\n").shared] == [None, None]


@pytest.mark.parametrize("profile", ["1g.24gb-me", "1g.24gb+me.all", "2g.48gb+gfx", "1c.2g.10gb"])
def test_an_instance_is_listed_with_any_profile(profile: str) -> None:
    found = with_instances(parse(read("470_mig")), LISTING.replace("3g.20gb", profile), MINORS)
    assert (found.gpus[0].mig_devices[0].profile, len(found.shared)) == (profile, 2)


def test_580_of_a_gpu_that_shares_the_hosts_memory() -> None:
    found = parse(read("580_no_memory"))
    assert (found.driver_version, found.cuda_version) == ("580.95.05", "13.0")
    (gpu,) = found.gpus
    assert (gpu.memory_mib, gpu.pci, gpu.mig_mode) == (None, "000f:01:00.0", None)


def test_an_h100_with_a_client_of_mps() -> None:
    """As driver 580.159.04 wrote it on 2026-11-26, but for its identities."""
    found = report(Outcome(ARGV, 0, read("580_h100_mps")))
    assert (found.driver_version, found.cuda_version, found.problem) == ("580.159.04", "13.0", None)
    (gpu,) = found.gpus
    assert (gpu.model, gpu.minor, gpu.memory_mib, gpu.pci) == ("NVIDIA H100 80GB HBM3", 0, 81559, "0000:00:06.0")
    assert (gpu.mig_mode, gpu.compute_mode, gpu.architecture) == ("disabled", "Default", "Hopper")
    assert gpu.ecc == Ecc("enabled", "enabled", 0, 0, 0, 0)
    assert gpu.repair == Repair(remapped_rows=0, pending=False, failed=False)
    assert gpu.processes == (Process(596, "C", "nvidia-cuda-mps-server", 66), Process(654, "M+C", "/opt/torch/.venv/bin/python3", 4084))


def test_ecc_and_retired_pages_of_a_driver_that_counts_bits() -> None:
    first, second = parse(read("384_two_gpus")).gpus
    assert first.ecc == Ecc("enabled", "disabled", 4, 0, 41, 1)
    assert first.repair == Repair(retired_pages=3, pending=True)
    assert (second.ecc, second.repair) == (Ecc(), Repair())


def test_ecc_and_retired_pages_as_recorded_from_535() -> None:
    first, second = parse(read("535_two_gpus")).gpus
    assert first.ecc == Ecc("enabled", "enabled", 0, 0, 0, 0)
    assert first.repair == Repair(retired_pages=0, pending=False)
    assert (first.architecture, second.architecture) == ("Turing", "Ampere")
    assert second.repair.retired_pages is None
    assert second.repair.action is None


def test_remapped_rows_and_two_kinds_of_uncorrected_errors_since_545() -> None:
    (gpu,) = parse(read("550_remapped")).gpus
    assert gpu.ecc == Ecc("enabled", "enabled", 6, 3, 71, 7)
    assert gpu.repair == Repair(remapped_rows=5, pending=True, failed=False, action="Drain and Reset")
    assert (gpu.mig_mode, gpu.pending_mig_mode, gpu.mig_devices) == ("disabled", "enabled", ())


def test_610_names_its_versions_otherwise_and_requests_a_recovery() -> None:
    found = report(Outcome(ARGV, 0, read("610_recovery")))
    assert (found.driver_version, found.cuda_version, found.problem) == ("610.57.04", "13.3", None)
    (gpu,) = found.gpus
    assert gpu.repair == Repair(remapped_rows=8, pending=True, failed=True, action="Reset")
    assert gpu.architecture == "Blackwell"


def test_a_reset_that_535_requires_has_the_name_of_later_drivers() -> None:
    text = read("550_remapped").replace("<reset_required>No", "<reset_required>Yes")
    assert parse(text).gpus[0].repair.action == "Reset"


def test_580_lists_a_gpu_that_is_lost_with_its_error_in_place_of_its_memory() -> None:
    found = report(Outcome(ARGV, 0, read("580_lost")))
    assert [gpu.memory_mib for gpu in found.gpus] == [189471, None]
    assert found.problem is not None
    assert found.problem.check == "gpu_lost"
    assert found.problem.found == "GPU 1 (0000:0b:00.0), of which nvidia-smi reports 'GPU is lost'"
    assert "Xid" in found.problem.cure


def test_a_gpu_that_requires_a_reset_is_listed_with_that() -> None:
    problem = parse(read("580_lost").replace("GPU is lost", "[GPU requires reset]")).problem
    assert problem is not None
    assert problem.check == "reset_required"
    assert "nvidia-smi --gpu-reset" in problem.cure


def test_only_the_fields_of_the_driver_say_that_a_gpu_is_lost() -> None:
    text = read("535_two_gpus").replace("<process_name>python train.py<", "<process_name>GPU is lost<")
    found = parse(text)
    assert (found.problem, found.gpus[0].processes[0].pid) == (None, 4242)


def test_memory_that_the_gpu_cannot_repair_since_580() -> None:
    first, second = parse(read("580_lost")).gpus
    assert first.repair == Repair(remapped_rows=0, pending=False, failed=True)
    assert second.repair == Repair()


def test_an_output_without_end_is_not_read() -> None:
    text = read("535_two_gpus").replace("Tesla T4", "T" * (64 * 1024 * 1024))
    with pytest.raises(SmiOutputError, match="more than 67108864"):
        parse(text)


def test_versions_that_newer_drivers_name_otherwise() -> None:
    text = read("580_no_memory").replace("driver_version", "kmd_version").replace("cuda_version", "cuda_umd_version")
    found = parse(text)
    assert (found.driver_version, found.cuda_version) == ("580.95.05", "13.0")


# Standard output and exit status, recorded from nvidia-smi 535.261.03.
RECORDED = [
    ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.261\n", 18, "version_mismatch"),
    (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is "
        "installed and running.\n\n",
        9,
        "driver_not_loaded",
    ),
    ("No devices were found\n", 6, "no_devices"),
    (
        "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display Driver is properly "
        "installed and present in your system.\nPlease also try adding directory that contains libnvidia-ml.so to your system PATH.\n",
        12,
        "library_missing",
    ),
    ("Unable to determine the device handle for GPU1: GPU is lost.  Reboot the system to recover this GPU\n\n\n", 15, "gpu_lost"),
]
# Of other versions, as their users quote them.
QUOTED = [
    ("Failed to initialize NVML: Insufficient Permissions\n", 4, "no_permission"),
    ("Failed to initialize NVML: GPU access blocked by the operating system\n", 17, "no_permission"),
    ("Unable to determine the device handle for GPU 0000:0A:00.0: Unknown Error\n", 255, "gpu_lost"),
    ("Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error\nNo devices were found\n", 6, "gpu_lost"),
    ("Unable to determine the device handle for GPU0000:05:00.0: GPU requires reset\n", 255, "reset_required"),
    ("Failed to initialize NVML: Driver Not Loaded\n", 9, "driver_not_loaded"),
    ("Failed to initialize NVML: NVML Shared Library Not Found\n", 12, "library_missing"),
    ("Unable to determine the device handle for GPU 0000:0B:00.0: GPU has fallen off the bus\n", 15, "gpu_lost"),
    ("", 4, "no_permission"),
    ("", 6, "no_devices"),
    ("", 12, "library_missing"),
    ("", 15, "gpu_lost"),
    ("", 18, "version_mismatch"),
    ("Failed to initialize NVML: Unknown Error\n", 255, "devices_denied"),
    ("Failed to initialize NVML: Unknown\n", 255, "failed"),
    ("", 9, "driver_not_loaded"),
    ("hello\n", 0, "unreadable"),
]


@pytest.mark.parametrize(("out", "status", "kind"), RECORDED + QUOTED)
def test_each_failure_has_its_kind_and_its_cure(out: str, status: int, kind: str) -> None:
    found = report(Outcome(ARGV, status, out))
    assert found.gpus == ()
    assert found.problem is not None
    assert found.problem.check == kind
    assert found.problem.cure
    if out and kind != "unreadable":
        assert " ".join(out.split())[:40] in found.problem.found


def test_a_host_without_nvidia_smi() -> None:
    problem = report(None).problem
    assert problem is not None
    assert problem.check == "not_installed"


def test_a_driver_that_hangs() -> None:
    problem = report(Outcome(ARGV, None, timed_out=30)).problem
    assert problem is not None
    assert (problem.check, problem.found) == ("timeout", "no answer from /usr/bin/nvidia-smi -q -x within 30 s")


def test_a_program_that_cannot_be_run() -> None:
    problem = report(Outcome(ARGV, None, err="[Errno 8] Exec format error")).problem
    assert problem is not None
    assert problem.check == "failed"
    assert "Exec format error" in problem.found
    assert "executable file of this machine's architecture" in problem.cure


def test_a_gpu_that_is_attached_and_does_not_answer() -> None:
    text = read("535_two_gpus").replace("<attached_gpus>2<", "<attached_gpus>3<")
    found = report(Outcome(ARGV, 0, "Unable to determine the device handle for GPU2\n" + text))
    assert len(found.gpus) == 2
    assert found.problem is not None
    assert (found.problem.check, found.problem.found) == ("gpu_lost", "3 GPUs attached, of which 2 answer")


def test_a_report_without_gpus() -> None:
    text = "<nvidia_smi_log><driver_version>535.261.03</driver_version><attached_gpus>0</attached_gpus></nvidia_smi_log>"
    problem = report(Outcome(ARGV, 0, text)).problem
    assert problem is not None
    assert (problem.check, problem.found) == ("no_devices", "a driver without GPUs")


@pytest.mark.parametrize("name", [one.stem.removeprefix("nvidia_smi_") for one in FIXTURES.glob("nvidia_smi_*.xml")])
def test_a_report_survives_the_way_through_json(name: str) -> None:
    for found in (report(Outcome(ARGV, 0, read(name))), report(Outcome(ARGV, 6, "No devices were found"))):
        assert SmiReport.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_more_gpus_processes_or_letters_than_a_host_can_have_are_cut() -> None:
    head, _, rest = read("610_recovery").partition("\t<gpu id")
    element = "\t<gpu id" + rest.partition("</nvidia_smi_log>")[0]
    info = element[element.index("<process_info>") : element.index("</process_info>")] + "</process_info>"
    many = element.replace(info, info.replace(">python<", f">{'x' * 9000}<") * 5000)
    (gpu,) = parse(head + many + "</nvidia_smi_log>").gpus
    assert (len(gpu.processes), len(gpu.processes[0].name)) == (4096, 200)
    assert len(parse(head + element * 300 + "</nvidia_smi_log>").gpus) == 128


@given(st.text())
def test_any_words_are_a_problem_and_never_an_exception(out: str) -> None:
    with pytest.raises(SmiOutputError):
        parse(out)
    assert report(Outcome(ARGV, 0, out)).problem is not None


WORDS = st.sampled_from(
    ["N/A", "[N/A]", "[Unknown Error]", "ERR!", "", "None", "-1", "1e9", "9" * 30, "٣", "²", "12 MiB", "7 TiB", "&", "<x/>", "\x00"]
)
TAGS = [
    "pending_retirement",
    "retired_count",
    "current_ecc",
    "dram_correctable",
    "sram_uncorrectable",
    "gpu_recovery_action",
    "reset_required",
]
TAGS += ["uuid", "minor_number", "total", "current_mig", "pid", "used_memory", "attached_gpus", "driver_version", "product_name", "index"]


@given(st.sampled_from(["535_two_gpus", "384_two_gpus", "470_mig"]), st.sampled_from(TAGS), WORDS | st.text(max_size=20))
def test_any_value_of_any_field_leaves_the_other_fields(name: str, tag: str, value: str) -> None:
    before, _, rest = read(name).partition(f"<{tag}>")
    text = before + f"<{tag}>" + value + f"</{tag}>" + rest.partition(f"</{tag}>")[2] if rest else before
    try:
        found = parse(text)
    except SmiOutputError:
        return  # no longer XML
    for gpu in found.gpus:
        assert isinstance(gpu.uuid, str)
        assert gpu.memory_mib is None or gpu.memory_mib >= 0
        assert gpu.minor is None or gpu.minor >= 0


@given(st.integers(0, 40000), st.integers(0, 400))
def test_a_cut_or_damaged_output_never_fails(start: int, length: int) -> None:
    text = read("535_two_gpus")
    report(Outcome(ARGV, 0, text[:start] + text[start + length :]))


@pytest.mark.parametrize(
    ("text", "expected"), [("535.261.03", (535, 261, 3)), ("v1.36.3-rc.1+k3s1", (1, 36, 3)), ("", None), (None, None), ("N/A", None)]
)
def test_versions_are_numbers(text: str | None, expected: tuple[int, ...] | None) -> None:
    assert numbers(text) == expected


@pytest.mark.parametrize(
    ("state", "status", "fabric"),
    [
        ("N/A", "N/A", None),
        ("Completed", "Success", "Completed"),
        ("Completed", "N/A", "Completed"),
        ("Completed", "Insufficient Resources", "Completed, Insufficient Resources"),
        ("In Progress", "N/A", "In Progress"),
        ("x" * 900, "N/A", "x" * 60),
    ],
)
def test_the_fabric_of_nvlink(state: str, status: str, fabric: str | None) -> None:
    text = (
        (FIXTURES / "nvidia_smi_535_two_gpus.xml")
        .read_text()
        .replace("<state>N/A</state>\n\t\t\t<status>N/A", f"<state>{state}</state>\n\t\t\t<status>{status}", 1)
    )
    first, second = parse(text).gpus
    assert (first.fabric, second.fabric) == (fabric, None)
    assert SmiReport.from_dict(parse(text).as_dict()) == parse(text)
