# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which packages a host gets for its driver, by its distribution, GPUs and firmware; and which hosts are left alone, and why.

The names of packages stand here as the distributions and NVIDIA's installation guide have them, not as the data files do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._driver.facts import HostFacts
from ansible_collections.gpushare.kubernetes.plugins.module_utils._driver.generations import generation
from ansible_collections.gpushare.kubernetes.plugins.module_utils._driver.plan import DriverPlan, Wish, make
from hypothesis import given
from hypothesis import strategies as st

from unit.fakes.plugins.driver.hosts import A100, B200, DEBIAN, GH200, H100, HOSTS, P100, T4, V100, VARS, data
from unit.golden import Golden

CURRENT = Wish("580.178.04")
DISTRIBUTION = Wish("535.261.03", source="distribution")


def plan(name: str = "debian_12", wish: Wish = CURRENT, **changes: Any) -> DriverPlan:
    return make(replace(HOSTS[name], **changes), wish, data(name))


def checks(found: DriverPlan) -> list[str]:
    return [one.check for one in found.rejected]


def names(found: DriverPlan) -> list[str]:
    return [name for name, _version in found.packages]


def test_every_distribution_that_is_planned_for_has_a_data_file() -> None:
    assert {path.stem for path in VARS.glob("*_*.yml")} == set(HOSTS)


@pytest.mark.parametrize(
    ("name", "driver", "module", "headers"),
    [
        ("debian_12", "nvidia-driver-cuda", "nvidia-kernel-open-dkms", "linux-headers-6.1.0-30-amd64"),
        ("debian_13", "nvidia-driver-cuda", "nvidia-kernel-open-dkms", "linux-headers-6.12.41+deb13-amd64"),
        ("ubuntu_22.04", "nvidia-utils-580", "nvidia-dkms-580-open", "linux-headers-5.15.0-119-generic"),
        ("ubuntu_24.04", "nvidia-utils-580", "nvidia-dkms-580-open", "linux-headers-6.8.0-45-generic"),
        ("rhel_9", "nvidia-driver-cuda", "kmod-nvidia-open-dkms", "kernel-devel"),
        ("rhel_10", "nvidia-driver-cuda", "kmod-nvidia-open-dkms", "kernel-devel"),
    ],
)
def test_nvidias_packages_at_one_exact_version(name: str, driver: str, module: str, headers: str) -> None:
    found = plan(name, replace(CURRENT, fingerprints=("A" * 40,)))
    assert checks(found) == []
    assert (found.module, found.build, found.change) == ("open", "dkms", "install")
    assert {driver, module} <= set(names(found))
    assert dict(found.packages)[driver] == dict(found.packages)[module] == "580.178.04"
    assert found.headers[0][0] == headers
    assert found.services == ("nvidia-persistenced.service",)
    assert found.repository is not None
    assert found.repository["url"].startswith("https://developer.download.nvidia.com/compute/cuda/repos/")
    assert found.repository["url"].endswith("/x86_64")
    assert (found.version, found.source, found.initramfs) == ("580.178.04", "nvidia", tuple(data(name)["initramfs"]))
    assert plan(name, replace(CURRENT, fingerprints=("A" * 40,), persistenced=False)).services == ()


def test_what_the_data_says_of_a_repository_reaches_it() -> None:
    known = data("rhel_9")
    source = known["sources"]["nvidia"]
    url = "https://developer.download.nvidia.com/compute/cuda/repos/rhel9/sbsa"
    expected = {
        "name": "nvidia-driver",
        "url": url,
        "suite": "/",
        "components": [],
        "key": f"{url}/D42D0685.pub",
        "fingerprints": ["610C7B14E068A878070DA4E99CD0A493D42D0685"],
        "replaces": [],
        "modules": ["nvidia-driver"],
        "version": "580.178.04",
    }
    arm = replace(HOSTS["rhel_9"], machine="aarch64")
    assert make(arm, CURRENT, known).repository == expected
    more = {"suite": "stable", "components": ["main"], "replaces": ["https://example.org/old"]}
    known = {**known, "sources": {"nvidia": {**source, "repository": {**source["repository"], **more}}}}
    assert make(arm, CURRENT, known).repository == {**expected, **more}


def test_sles_takes_the_module_that_suse_signed() -> None:
    found = plan("suse_15", strict=True, secure_boot="enabled")
    assert checks(found) == []
    assert (found.build, found.headers) == ("precompiled", ())
    # Of the same driver as the libraries: the repository has those of other versions as well.
    assert dict(found.packages)["nvidia-open-driver-G06-signed-cuda-kmp-default"] == "580.178.04"
    assert dict(found.packages)["nvidia-compute-utils-G06"] == "580.178.04"


def test_enterprise_linux_names_the_kernel_of_its_headers_by_version() -> None:
    assert plan("rhel_9").headers[0] == ("kernel-devel", "5.14.0-503.11.1.el9_5")
    assert "kmod-nvidia-open-580.178.04-5.14.0-503.11.1" in names(plan("rhel_9", replace(CURRENT, build="precompiled")))


def test_debians_own_packages_need_no_repository_of_ours() -> None:
    found = plan(wish=DISTRIBUTION)
    assert checks(found) == []
    assert found.repository is None
    assert {"nvidia-smi", "libcuda1", "libnvidia-ml1", "nvidia-kernel-dkms"} <= set(names(found))
    # Debian versions it on its own.
    assert dict(found.packages)["nvidia-persistenced"] == ""
    assert dict(found.packages)["nvidia-kernel-dkms"] == "535.261.03"


def test_names_without_a_branch_from_590_on() -> None:
    assert "nvidia-utils" in names(plan("ubuntu_24.04", Wish("590.44.01")))
    assert "nvidia-dkms-open" in names(plan("ubuntu_24.04", Wish("590.44.01")))


def test_arm_has_its_own_repository() -> None:
    found = plan("debian_12", machine="aarch64", release="6.1.0-30-arm64", next_release="6.1.0-30-arm64", devices=(GH200,))
    assert checks(found) == []
    assert found.repository is not None
    assert found.repository["url"].endswith("/debian12/sbsa")
    assert found.headers == (("linux-headers-6.1.0-30-arm64", ""), ("linux-headers-arm64", ""))


def test_headers_for_the_running_and_the_next_kernel() -> None:
    found = plan(next_release="6.1.0-32-amd64")
    assert [name for name, _ in found.headers] == ["linux-headers-6.1.0-30-amd64", "linux-headers-6.1.0-32-amd64", "linux-headers-amd64"]
    found = plan(next_release="6.1.0-32-amd64", headers=("6.1.0-30-amd64",))
    assert [name for name, _ in found.headers] == ["linux-headers-6.1.0-32-amd64", "linux-headers-amd64"]


def test_two_kernels_whose_headers_are_one_package_are_rejected() -> None:
    two = {"next_release": "5.14.0-570.1.1.el9_6.x86_64"}
    assert checks(plan("rhel_9", **two)) == ["headers"]
    assert checks(plan("rhel_9", **two, headers=("5.14.0-503.11.1.el9_5.x86_64",))) == []


@pytest.mark.parametrize(
    ("devices", "version", "wanted", "module", "rejected"),
    [
        ((T4,), "580.178.04", "auto", "open", []),
        ((T4,), "550.163.01", "auto", "proprietary", []),
        ((T4,), "550.163.01", "open", "open", []),
        ((T4,), "470.256.02", "auto", "proprietary", []),
        ((T4,), "470.256.02", "open", "proprietary", ["module"]),
        ((T4,), "620.10.01", "auto", "open", []),
        ((T4,), "620.10.01", "proprietary", "open", ["module"]),
        ((V100,), "580.178.04", "auto", "proprietary", []),
        ((V100,), "580.178.04", "open", "proprietary", ["module"]),
        ((V100,), "590.44.01", "auto", "proprietary", ["gpu"]),
        ((P100, T4), "580.178.04", "auto", "proprietary", []),
        ((B200,), "580.178.04", "auto", "open", []),
        ((B200,), "580.178.04", "proprietary", "open", ["module"]),
        ((B200,), "580.178.04", "open", "open", []),
        ((V100,), "580.178.04", "proprietary", "proprietary", []),
        # Without the open kind, with both, with the open one by default, with it alone.
        ((T4,), "514.10.01", "open", "proprietary", ["module"]),
        ((T4,), "515.43.04", "open", "open", []),
        ((T4,), "559.10.01", "auto", "proprietary", []),
        ((T4,), "560.28.03", "auto", "open", []),
        ((T4,), "619.10.01", "proprietary", "proprietary", []),
        ((B200,), "565.57.01", "auto", "open", ["gpu"]),
        ((B200, V100), "580.178.04", "auto", "proprietary", ["gpus"]),
        ((GH200,), "550.163.01", "auto", "open", []),
        ((H100, A100), "515.105.01", "auto", "proprietary", ["gpu"]),
        ((), "580.178.04", "auto", "open", []),
        (("0x3fff",), "580.178.04", "auto", "open", []),
        (("garbage",), "550.163.01", "auto", "proprietary", []),
    ],
)
def test_the_kernel_module_by_the_generation_of_the_gpus(
    devices: tuple[str, ...], version: str, wanted: str, module: str, rejected: list[str]
) -> None:
    found = plan(wish=Wish(version, module=wanted), devices=devices)
    assert (found.module, checks(found)) == (module, rejected)


@pytest.mark.parametrize(
    ("devices", "version", "module", "found", "expected"),
    [
        # Two GPUs of one generation are one reason.
        ((V100, "0x1db1"), "590.44.01", "auto", "Volta", "from 384 to 580"),
        ((B200,), "565.57.01", "auto", "Blackwell", "from 570 on"),
        ((B200,), "580.178.04", "proprietary", "Blackwell", "open"),
        ((V100,), "580.178.04", "open", "Volta", "proprietary"),
        ((T4,), "620.10.01", "proprietary", "620.10.01", "open"),
    ],
)
def test_a_rejection_names_the_gpu_and_what_serves_it(
    devices: tuple[str, ...], version: str, module: str, found: str, expected: str
) -> None:
    (one,) = plan(wish=Wish(version, module=module), devices=devices).rejected
    assert found in one.found
    assert expected in one.expected


def test_a_gpu_that_is_not_known_is_said() -> None:
    assert "0x3fff" in plan(devices=("0x3fff", T4)).notes[0]
    assert "no NVIDIA GPU" in plan(devices=()).notes[0]


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("0x102d", "Kepler"),
        ("0x17fd", "Maxwell"),
        ("0x1bb3", "Pascal"),
        ("0x15f8", "Pascal"),
        ("0x1db1", "Volta"),
        ("0x1eb8", "Turing"),
        ("0x2182", "Turing"),
        ("0x20b7", "Ampere"),
        ("0x2236", "Ampere"),
        ("0x2414", "Ampere"),
        ("0x27b8", "Ada Lovelace"),
        ("0x26b9", "Ada Lovelace"),
        ("0x2335", "Hopper"),
        ("0x2329", "Hopper"),
        ("0x2342", "Grace Hopper"),
        ("0x2901", "Blackwell"),
        ("0x2bb4", "Blackwell"),
        ("0x2c58", "Blackwell"),
        ("0x3182", "Blackwell"),
    ],
)
def test_generations_of_gpus_that_are_sold(device: str, name: str) -> None:
    found = generation(device)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        # The first and the last GPU of each block of ids, by their chips in the public PCI id database.
        ("Kepler", ("0x0fc0", "0x103a", "0x103f", "0x1180", "0x11ff", "0x1280", "0x12ba")),
        ("Maxwell", ("0x1340", "0x1436", "0x1613", "0x1676", "0x174d", "0x17fd")),
        ("Pascal", ("0x15c2", "0x15ff", "0x1725", "0x172f", "0x1b00", "0x1d56")),
        ("Volta", ("0x1d81", "0x1df6")),
        ("Turing", ("0x1e02", "0x1ff9", "0x2182", "0x21d1")),
        ("Ampere", ("0x2080", "0x20ff", "0x2200", "0x22be", "0x2414", "0x25fb")),
        ("Ada Lovelace", ("0x2681", "0x28f8")),
        ("Hopper", ("0x2302", "0x237f", "0x233d")),
        ("Grace Hopper", ("0x2342", "0x2343", "0x2345", "0x2348")),
        ("Blackwell", ("0x2900", "0x29f1", "0x2b00", "0x2f58", "0x3180", "0x31fe", "0x3200", "0x323e", "0x3340")),
        # Fermi, and what comes after Blackwell.
        (None, ("0x0de2", "0x1040", "0x1140", "0x1251", "0x3000", "0x30c0")),
    ],
)
def test_generations_of_all_chips(name: str | None, devices: tuple[str, ...]) -> None:
    found = [generation(device) for device in devices]
    assert [one and one.name for one in found] == [name] * len(devices)


def test_a_generation_begins_and_ends_with_a_block_of_64_ids() -> None:
    """As NVIDIA gives them out; among those of Hopper are some of boards with Grace."""
    edges = [number for number in range(1, 2**16) if generation(hex(number)) != generation(hex(number - 1))]
    assert [hex(number) for number in edges if number % 64] == ["0x2342", "0x2349"]


@pytest.mark.parametrize(
    ("device", "first", "last"),
    [
        ("0x102d", 304, 470),
        ("0x17fd", 340, 580),
        (P100, 367, 580),
        (V100, 384, 580),
        (T4, 410, None),
        (A100, 450, None),
        ("0x27b8", 520, None),
        (H100, 520, None),
        (GH200, 535, None),
        (B200, 570, None),
    ],
)
def test_the_branches_of_drivers_that_serve_a_gpu(device: str, first: int, last: int | None) -> None:
    def served(branch: int) -> bool:
        return "gpu" not in checks(plan(wish=Wish(f"{branch}.10.01"), devices=(device,)))

    newest = 999 if last is None else last
    assert [served(branch) for branch in (first - 1, first, newest, newest + 1)] == [False, True, True, last is None]


STRICT = {"strict": True, "secure_boot": "enabled"}


@pytest.mark.parametrize(
    ("name", "wish", "build", "rejected"),
    [
        ("debian_12", CURRENT, "dkms", ["secure_boot"]),
        ("debian_12", replace(CURRENT, own_key=True), "dkms", []),
        ("ubuntu_24.04", Wish("580.178.04", source="distribution"), "precompiled", []),
        ("ubuntu_24.04", Wish("580.178.04", source="distribution", build="dkms"), "dkms", ["secure_boot"]),
        ("ubuntu_24.04", CURRENT, "dkms", ["secure_boot"]),
        # NVIDIA signs its own, with a key that no firmware knows.
        ("rhel_9", CURRENT, "precompiled", ["secure_boot"]),
        ("suse_15", replace(CURRENT, module="proprietary"), "dkms", ["secure_boot"]),
        ("suse_15", Wish("570.211.01", module="proprietary"), "precompiled", ["secure_boot"]),
    ],
)
def test_secure_boot_is_found_before_anything_is_changed(name: str, wish: Wish, build: str, rejected: list[str]) -> None:
    found = plan(name, wish, **STRICT)
    assert (found.build, checks(found)) == (build, rejected)
    for one in found.rejected:
        assert "mokutil --import" in one.cure


@pytest.mark.parametrize(
    ("wish", "rejected"),
    [
        (replace(CURRENT, build="precompiled"), ["build"]),
        (Wish("535.261.03", source="distribution", build="precompiled"), ["build"]),
        (replace(CURRENT, build="dkms"), []),
    ],
)
def test_a_build_that_the_source_lacks(wish: Wish, rejected: list[str]) -> None:
    assert checks(plan(wish=wish)) == rejected


def test_a_source_without_modules_for_dkms_is_taken_precompiled() -> None:
    """Of whatever version suits the kernel: it is not that of the driver."""
    assert checks(plan("suse_15", Wish("570.211.01", module="open", build="dkms"))) == ["build"]
    assert plan("suse_15", Wish("570.211.01", module="open")).build == "precompiled"
    found = plan("ubuntu_24.04", Wish("580.178.04", source="distribution", build="precompiled"))
    assert (checks(found), found.headers) == ([], ())
    assert dict(found.packages)["linux-modules-nvidia-580-server-open-6.8.0-45-generic"] == ""


@pytest.mark.parametrize(
    ("have", "module", "want", "ok", "change", "rejected"),
    [
        (None, None, "580.178.04", False, "install", []),
        ("580.178.04", "open", "580.178.04", False, "none", []),
        ("580.178.04", None, "580.178.04", False, "none", []),
        ("580.178.04", "proprietary", "580.178.04", False, "module", ["change"]),
        ("580.178.04", "proprietary", "580.178.04", True, "module", []),
        ("535.261.03", "proprietary", "580.178.04", False, "upgrade", ["change"]),
        ("535.261.03", "proprietary", "580.178.04", True, "upgrade", []),
        ("590.44.01", "open", "580.178.04", False, "downgrade", ["change"]),
        ("590.44.01", "open", "580.178.04", True, "downgrade", []),
        ("580.95.05", "open", "580.178.04", False, "upgrade", ["change"]),
    ],
)
def test_nothing_is_upgraded_silently(have: str | None, module: str | None, want: str, ok: bool, change: str, rejected: list[str]) -> None:
    found = plan(wish=Wish(want, change_ok=ok), version=have, module=module)
    assert (found.change, checks(found)) == (change, rejected)
    if rejected:
        assert f"with the {module} kernel module" in found.rejected[0].found


def test_a_change_needs_a_permission() -> None:
    (one,) = plan(wish=Wish("580.178.04"), version="535.261.03", module=None).rejected
    assert (one.check, one.found) == ("change", "driver 535.261.03")
    # The packages of the very driver that is wanted are no hindrance.
    have = {"nvidia-kernel-open-dkms": "580.178.04-1"}
    assert checks(plan(version="580.178.04", module="open", packages=have)) == []


@pytest.mark.parametrize(
    ("changes", "rejected"),
    [({"vendor": "DGX OS 6.1.0"}, "vendor_image"), ({"container": True}, "driver_container"), ({"run_file": True}, "run_file")],
)
def test_what_somebody_else_manages_is_left_alone(changes: dict[str, Any], rejected: str) -> None:
    assert checks(plan(**changes)) == [rejected]


def test_a_change_of_module_may_remove_the_other_kind_only() -> None:
    have = {"nvidia-kernel-dkms": "580.178.04-1", "nvidia-driver-cuda": "580.178.04-1"}
    found = plan(wish=replace(CURRENT, change_ok=True), version="580.178.04", module="proprietary", packages=have)
    assert found.replaces == ("nvidia-kernel-dkms",)
    assert "nvidia-kernel-open-dkms" in names(found)


KERNEL = "5.14.0-503.11.1"


@pytest.mark.parametrize(
    ("name", "wish", "have", "gone"),
    [
        # A precompiled module of EL has driver and kernel in its name. One for an older kernel and the same driver does no harm.
        (
            "rhel_9",
            replace(CURRENT, build="precompiled"),
            [f"kmod-nvidia-open-550.163.01-{KERNEL}", "kmod-nvidia-open-550.163.01-5.14.0-427", "kmod-nvidia-open-580.178.04-5.14.0-427"],
            [f"kmod-nvidia-open-550.163.01-{KERNEL}", "kmod-nvidia-open-550.163.01-5.14.0-427"],
        ),
        ("rhel_9", replace(CURRENT, build="precompiled"), ["kmod-nvidia-open-dkms", "nvidia-driver-cuda"], ["kmod-nvidia-open-dkms"]),
        ("rhel_9", CURRENT, [f"kmod-nvidia-580.178.04-{KERNEL}", "kmod-nvidia-latest-dkms"], None),
        ("rhel_9", CURRENT, ["kmod-nvidia-open-dkms", "nvidia-container-toolkit"], []),
        ("suse_15", CURRENT, ["nvidia-driver-G06-kmp-default", "nvidia-driver-G06-kmp-azure"], ["nvidia-driver-G06-kmp-default"]),
        # Ubuntu's packages have the branch in their names, and those of two branches conflict.
        (
            "ubuntu_24.04",
            CURRENT,
            ["nvidia-utils-550", "nvidia-compute-utils-550", "nvidia-dkms-550", "nvidia-utils-580", "nvidia-container-toolkit"],
            ["nvidia-compute-utils-550", "nvidia-dkms-550", "nvidia-utils-550"],
        ),
        ("ubuntu_24.04", Wish("590.44.01"), ["nvidia-utils-580", "nvidia-dkms-580-open"], ["nvidia-dkms-580-open", "nvidia-utils-580"]),
    ],
)
def test_what_another_driver_left_makes_room(name: str, wish: Wish, have: list[str], gone: list[str] | None) -> None:
    found = plan(name, replace(wish, change_ok=True), packages=dict.fromkeys(have, "1"), version="550.163.01", module="proprietary")
    assert found.replaces == tuple(sorted(have if gone is None else gone))


def test_a_fabric_manager_that_nobody_asked_about_stays() -> None:
    have = {"nvidia-fabricmanager-550": "550.163.01-1"}
    wish = replace(CURRENT, change_ok=True)
    assert plan(wish=wish, packages=have, version="550.163.01").replaces == ()
    assert plan(wish=wish, packages=have, version="550.163.01", switches=4, devices=(H100,)).replaces == ("nvidia-fabricmanager-550",)


def test_fabric_manager_of_the_same_version_with_nvswitch_only() -> None:
    found = plan(switches=4, devices=(H100,))
    assert checks(found) == []
    assert dict(found.packages)["nvidia-fabricmanager"] == dict(found.packages)["nvidia-imex"] == "580.178.04"
    assert "nvidia-fabricmanager.service" in found.services
    assert "nvidia-fabricmanager-570" in names(plan(wish=Wish("570.211.01"), switches=4, devices=(H100,)))
    assert not [name for name in names(plan()) if "fabric" in name or "imex" in name]
    assert checks(plan(wish=DISTRIBUTION, switches=4)) == ["fabric"]
    assert checks(plan(wish=replace(DISTRIBUTION, fabric="never"), switches=4)) == []


def test_nvswitches_that_the_bus_does_not_show_are_noted() -> None:
    (note,) = plan(devices=(B200,)).notes
    assert "SW_MNG" in note
    assert plan(devices=("0x2909",)).notes == plan(devices=("0x2920",)).notes == (note,)
    assert plan(wish=replace(CURRENT, fabric="never"), devices=(B200,)).notes == plan(devices=(H100,)).notes == ()


def test_nouveau_is_blacklisted_once() -> None:
    assert plan().blacklist
    assert not plan(nouveau_blacklisted=True).blacklist


@pytest.mark.parametrize("version", ["", "580", "580.x", "latest", "580.178.04-1", "580.178.04; rm -rf /", "5" * 500])
def test_a_version_that_is_none(version: str) -> None:
    found = plan(wish=Wish(version))
    assert checks(found) == ["version"]
    assert (repr(version)[:80] if version else "no gpushare_driver_version") in found.rejected[0].found
    assert len(str(found.rejected[0])) < 400


def test_a_distribution_without_data() -> None:
    found = make(replace(DEBIAN, name="Alpine Linux v3.20"), CURRENT, None)
    assert checks(found) == ["distribution"]
    assert "Alpine Linux v3.20 on x86_64" in found.rejected[0].found


def test_a_source_that_the_distribution_or_its_machine_lacks() -> None:
    assert checks(plan("rhel_9", Wish("580.178.04", source="distribution"))) == ["source"]
    assert checks(plan(machine="ppc64le")) == ["source"]


def test_a_repository_of_ones_own_needs_its_key() -> None:
    mirror = replace(CURRENT, repository="https://mirror.example/nvidia", key="/root/key.asc", fingerprints=("B" * 40,))
    found = plan(wish=mirror)
    assert found.repository is not None
    assert (found.repository["url"], found.repository["key"], found.repository["fingerprints"]) == (
        "https://mirror.example/nvidia",
        "/root/key.asc",
        ["B" * 40],
    )
    own = replace(DISTRIBUTION, repository="https://mirror.example/debian")
    for lacks_one in (own, replace(own, key="/root/key.asc"), replace(own, fingerprints=("B" * 40,))):
        assert checks(plan(wish=lacks_one)) == ["key"]


def test_a_key_whose_fingerprint_is_not_known_is_rejected_with_its_name_and_the_variable(golden: Golden) -> None:
    (reason,) = plan("rhel_10").rejected
    assert (reason.check, reason.severity) == ("key", "error")
    golden(reason.found)
    golden(reason.cure)
    assert plan("rhel_10", replace(CURRENT, fingerprints=("A" * 40,))).rejected == ()
    (reason,) = plan(wish=replace(DISTRIBUTION, repository="https://mirror.example/debian")).rejected
    golden(reason.found)
    golden(reason.cure)


@pytest.mark.parametrize("name", sorted(HOSTS))
def test_the_name_of_nvidias_key_is_the_end_of_its_fingerprint(name: str) -> None:
    repository = data(name)["sources"]["nvidia"]["repository"]
    named = {repository["key"].partition(".")[0].upper()}
    assert {fingerprint[-8:] for fingerprint in repository["fingerprints"]} == (set() if name == "rhel_10" else named)
    assert all(len(fingerprint) == 40 for fingerprint in repository["fingerprints"])


RUN_FILE = Wish("580.178.04", source="run_file", run_file="/root/NVIDIA-Linux-x86_64-580.178.04.run")


def test_a_run_file_is_silent_keeps_its_log_and_builds_by_dkms() -> None:
    found = plan(wish=RUN_FILE)
    assert checks(found) == []
    assert found.run_file[0] == "/root/NVIDIA-Linux-x86_64-580.178.04.run"
    assert {"--silent", "--dkms", "--kernel-module-type=open"} <= set(found.run_file)
    assert [one for one in found.run_file if one.startswith("--log-file-name=/var/log/")]
    assert (found.packages, found.repository) == ((), None)
    assert found.headers[0][0] == "linux-headers-6.1.0-30-amd64"


@pytest.mark.parametrize(
    ("version", "module", "options"),
    [
        ("510.108.03", "auto", []),
        ("515.43.04", "open", ["-m=kernel-open"]),
        ("515.43.04", "proprietary", []),
        ("559.10.01", "open", ["-m=kernel-open"]),
        ("559.10.01", "proprietary", []),
        ("560.28.03", "open", ["--kernel-module-type=open"]),
        ("560.28.03", "proprietary", ["--kernel-module-type=proprietary"]),
        ("580.178.04", "auto", ["--kernel-module-type=open"]),
    ],
)
def test_how_a_run_file_is_told_the_kind_of_module(version: str, module: str, options: list[str]) -> None:
    found = plan(wish=replace(RUN_FILE, version=version, run_file=f"/root/NVIDIA-Linux-x86_64-{version}.run", module=module))
    assert [one for one in found.run_file if one.startswith(("-m", "--kernel-module-type"))] == options


@pytest.mark.parametrize(("version", "knows"), [("535.261.03", False), ("545.23.06", True), ("580.178.04", True)])
def test_a_run_file_that_can_installs_beside_a_driver_that_is_in_use(version: str, knows: bool) -> None:
    wish = replace(RUN_FILE, version=version, run_file=f"/root/NVIDIA-Linux-x86_64-{version}.run")
    assert ("--allow-installation-with-running-driver" in plan(wish=wish).run_file) == knows


@pytest.mark.parametrize(
    ("wish", "changes", "rejected"),
    [
        (replace(RUN_FILE, run_file="NVIDIA-580.178.04.run"), {}, ["run_file"]),
        (replace(RUN_FILE, run_file="/root/NVIDIA-Linux-x86_64-550.163.01.run"), {}, ["run_file"]),
        (RUN_FILE, {"nouveau_loaded": True}, ["nouveau"]),
        (RUN_FILE, {"packages": {"nvidia-kernel-dkms": "535.261.03-1"}}, ["packages"]),
        (RUN_FILE, {"packages": {"nvidia-container-toolkit": "1.17.8-1"}}, []),
        (RUN_FILE, {"run_file": True}, []),
        (RUN_FILE, {"switches": 2}, ["fabric"]),
        (replace(RUN_FILE, fabric="never"), {"switches": 2}, []),
        # As the installer's source has it: it removes the driver that is there before it looks for dkms.
        (RUN_FILE, {"dkms": False}, ["run_file"]),
        (RUN_FILE, {"dkms": False, "version": "580.178.04", "module": "open"}, []),
        (RUN_FILE, STRICT, ["secure_boot"]),
    ],
)
def test_a_run_file_that_would_fail_half_way(wish: Wish, changes: dict[str, Any], rejected: list[str]) -> None:
    assert checks(plan(wish=wish, **changes)) == rejected


WORDS = st.sampled_from(["auto", "open", "proprietary"])


@given(
    st.sampled_from(sorted(HOSTS)),
    st.lists(st.sampled_from([T4, V100, P100, A100, H100, GH200, B200, "0xffff", ""]), max_size=8),
    st.tuples(st.integers(300, 999), st.integers(0, 999)),
    WORDS,
    st.sampled_from(["nvidia", "distribution", "run_file"]),
    st.booleans(),
)
def test_a_plan_that_is_not_rejected_suits_every_gpu(
    name: str, devices: list[str], version: tuple[int, int], module: str, source: str, strict: bool
) -> None:
    wish = Wish(
        f"{version[0]}.{version[1]}", source=source, module=module, run_file=f"/x/{version[0]}.{version[1]}.run", fingerprints=("A" * 40,)
    )
    found = plan(name, wish, devices=tuple(devices), strict=strict)
    for one in found.rejected:
        assert all((one.found, one.expected, one.cure))
    if found.rejected:
        return
    for gpu in filter(None, map(generation, devices)):
        assert gpu.first <= version[0] <= (gpu.last or 9999)
        assert found.module == "open" or gpu.open_module != "only"
        assert found.module == "proprietary" or gpu.open_module != "no"
    assert module in ("auto", found.module)
    assert bool(found.packages) != bool(found.run_file)
    for name_, _version in (*found.packages, *found.headers):
        assert "{" not in name_


def test_facts_survive_the_way_through_json() -> None:
    for one in HOSTS.values():
        assert HostFacts.from_dict(one.as_dict()) == one


def test_a_version_with_a_known_vulnerability_is_noted() -> None:
    assert plan(wish=Wish("580.126.20")).notes == (
        "the driver 580.126.20 has CVE-2026-47601 (CVSS 7.8) and 89 more known vulnerabilities; expected 580.178.04 or newer: correct "
        "gpushare_driver_version",
    )
    assert plan().notes == ()


FABRIC = ("nvidia-fabricmanager", "nvidia-fabric-manager", "nvidia-imex", "libnvidia-nscq", "libnvsdm", "nvlsm", "infiniband-diags")


def fabric(found: DriverPlan) -> dict[str, str]:
    """The software of NVSwitches that is planned."""
    return {name: version for name, version in found.packages if name.startswith(FABRIC)}


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("rhel_9", "580.178.04", {"nvidia-fabricmanager", "nvidia-imex", "libnvidia-nscq", "libnvsdm"}),
        ("rhel_9", "570.211.01", {"nvidia-fabric-manager", "nvidia-imex-570", "libnvidia-nscq-570", "libnvsdm-570"}),
        ("rhel_8", "550.163.01", {"nvidia-fabric-manager", "nvidia-imex-550", "libnvidia-nscq-550"}),
        # IMEX came with 550.
        ("rhel_9", "535.309.01", {"nvidia-fabric-manager", "libnvidia-nscq-535"}),
        ("ubuntu_22.04", "535.309.01", {"nvidia-fabricmanager-535", "libnvidia-nscq-535"}),
        ("ubuntu_24.04", "570.211.01", {"nvidia-fabricmanager-570", "nvidia-imex-570", "libnvidia-nscq-570", "libnvsdm-570"}),
        ("ubuntu_24.04", "595.91.07", {"nvidia-fabricmanager", "nvidia-imex", "libnvidia-nscq", "libnvsdm"}),
        ("suse_15", "595.91.07", {"nvidia-fabricmanager", "nvidia-imex", "libnvidia-nscq", "libnvsdm"}),
    ],
)
def test_the_names_of_the_fabric_managers_packages_by_branch(name: str, version: str, expected: set[str]) -> None:
    found = fabric(plan(name, Wish(version), switches=4, devices=(H100,)))
    assert (set(found), set(found.values())) == (expected, {version})
    arm = fabric(plan(name, Wish(version), switches=4, devices=(H100,), machine="aarch64"))
    assert set(arm) == {one for one in expected if not one.startswith("libnvsdm")}


@pytest.mark.parametrize("name", ["rhel_9", "ubuntu_24.04", "debian_12", "suse_15"])
def test_nvlink_5_needs_a_manager_of_its_subnet_too(name: str) -> None:
    found = plan(name, Wish("595.91.07"), nvlink5=True, devices=(B200,) * 8)
    assert (checks(found), found.notes) == ([], ())
    assert {"nvlsm": "", "infiniband-diags": ""}.items() <= fabric(found).items()
    assert fabric(found)["nvidia-fabricmanager"] == "595.91.07"
    assert "nvidia-fabricmanager.service" in found.services
    assert checks(plan("ubuntu_24.04", Wish("595.91.07", source="distribution"), nvlink5=True, devices=(B200,))) == ["fabric"]
    assert "fabric" in checks(plan(name, RUN_FILE, nvlink5=True, devices=(B200,)))


@pytest.mark.parametrize(("device", "words"), [("0x2941", "GB200"), ("0x31a1", "GB300"), ("0x31C2", "GB300"), ("0x31c3", "GB300")])
def test_a_domain_of_several_machines_is_rejected_by_name(device: str, words: str) -> None:
    (one,) = plan(devices=(device,)).rejected
    assert (one.check, one.found.partition(",")[0]) == ("fabric", words)
    assert checks(plan(wish=replace(CURRENT, fabric="never"), devices=(device,))) == []


@pytest.mark.parametrize(
    ("name", "version", "module", "build", "expected"),
    [
        ("suse_15", "580.178.04", "open", "precompiled", {"nvidia-compute-G06", "nvidia-open-driver-G06-signed-cuda-kmp-default"}),
        ("suse_15", "580.178.04", "proprietary", "dkms", {"nvidia-compute-utils-G06", "nvidia-driver-G06"}),
        ("suse_15", "580.178.04", "open", "dkms", {"nvidia-compute-utils-G06", "nvidia-open-driver-G06"}),
        ("suse_15", "590.48.01", "open", "dkms", {"nvidia-compute-G07", "nvidia-open-driver-G07"}),
        ("suse_16", "595.91.07", "open", "precompiled", {"nvidia-compute-G07", "nvidia-open-driver-G07-signed-cuda-kmp-default"}),
        ("suse_16", "595.91.07", "proprietary", "dkms", {"nvidia-compute-utils-G07", "nvidia-driver-G07"}),
    ],
)
def test_suse_has_other_names_from_590_on(name: str, version: str, module: str, build: str, expected: set[str]) -> None:
    found = plan(name, Wish(version, module=module, build=build if build == "dkms" else "auto"))
    assert (checks(found), found.build) == ([], build)
    assert expected <= set(names(found))
    assert not [one for one in names(found) if ("G06" if version >= "590" else "G07") in one]


def test_suse_16_has_no_older_branch() -> None:
    assert checks(plan("suse_16")) == ["source"]
    found = plan("suse_16", Wish("595.91.07"))
    assert found.repository is not None
    assert found.repository["key"].endswith("/suse16/x86_64/3A8B5622.pub")


def test_packages_of_another_generation_of_names_make_room() -> None:
    have = dict.fromkeys(["nvidia-compute-G06", "nvidia-open-driver-G06-signed-cuda-kmp-default", "nvidia-fabric-manager"], "1")
    wish = Wish("595.91.07", change_ok=True)
    found = plan("suse_15", wish, packages=have, version="580.95.05", switches=4, devices=(H100,))
    assert found.replaces == tuple(sorted(have))


def test_leap_has_a_repository_of_its_own() -> None:
    found = plan("opensuse_15")
    assert found.repository is not None
    assert "/opensuse15/x86_64" in found.repository["url"]
    assert checks(plan("opensuse_15", machine="aarch64")) == ["source"]


CANONICAL = ("nvidia-utils-535-server", "nvidia-kernel-source-535-server-open", "libnvidia-compute-535-server")


def test_canonicals_packages_make_room_for_nvidias_with_a_permission() -> None:
    have = dict.fromkeys(
        [*CANONICAL, "linux-modules-nvidia-535-server-6.8.0-45-generic", "nvidia-container-toolkit"], "535.261.03-0ubuntu1"
    )
    found = plan("ubuntu_24.04", replace(CURRENT, change_ok=True), packages=have, version="535.261.03")
    assert checks(found) == []
    assert set(found.replaces) == set(have) - {"nvidia-container-toolkit"}
    assert checks(plan("ubuntu_24.04", packages=have, version="535.261.03")) == ["change"]
    # Also where the versions are the same.
    (one,) = plan("ubuntu_24.04", packages=have, version="580.178.04", module="open").rejected
    assert (one.check, "and 3 more" in one.found) == ("change", True)


@pytest.mark.parametrize(
    ("name", "changes", "headers"),
    [
        ("ubuntu_22.04", {"kernel_packages": ("linux-image-generic-hwe-22.04",)}, ["linux-headers-generic-hwe-22.04"]),
        ("ubuntu_24.04", {"kernel_packages": ("linux-image-aws",)}, ["linux-headers-aws"]),
        ("ubuntu_24.04", {"kernel_packages": ("linux-image-nvidia-64k",)}, ["linux-headers-nvidia-64k"]),
        ("debian_12", {"kernel_packages": ("linux-image-cloud-amd64",)}, ["linux-headers-cloud-amd64"]),
        ("debian_12", {}, ["linux-headers-amd64"]),
    ],
)
def test_the_headers_of_later_kernels_follow_the_package_that_brings_them(name: str, changes: Any, headers: list[str]) -> None:
    """Those of another flavour leave the node without a module at the next reboot."""
    assert [one for one, _ in plan(name, **changes).headers][1:] == headers


@pytest.mark.parametrize(
    ("release", "machine", "headers"),
    [
        ("5.14.0-503.11.1.el9_5.x86_64", "x86_64", [("kernel-devel", "5.14.0-503.11.1.el9_5"), ("kernel-devel-matched", "")]),
        ("5.14.0-503.11.1.el9_5.aarch64+64k", "aarch64", [("kernel-64k-devel", "5.14.0-503.11.1.el9_5"), ("kernel-64k-devel-matched", "")]),
        ("5.14.0-503.11.1.el9_5.x86_64+rt", "x86_64", [("kernel-rt-devel", "5.14.0-503.11.1.el9_5"), ("kernel-rt-devel-matched", "")]),
        ("5.15.0-207.156.6.el9uek.x86_64", "x86_64", [("kernel-uek-devel", "5.15.0-207.156.6.el9uek")]),
    ],
)
def test_the_headers_of_enterprise_linux_by_the_flavour_of_the_kernel(release: str, machine: str, headers: list[tuple[str, str]]) -> None:
    found = plan("rhel_9", release=release, next_release=release, machine=machine)
    assert list(found.headers) == headers


def test_precompiled_modules_of_the_running_the_next_and_later_kernels() -> None:
    wish = Wish("580.178.04", source="distribution", build="precompiled")
    found = plan("ubuntu_24.04", wish, next_release="6.8.0-47-generic", kernel_packages=("linux-image-virtual-hwe-24.04",))
    modules = [name for name in names(found) if name.startswith("linux-modules")]
    start = "linux-modules-nvidia-580-server-open-"
    assert modules == [f"{start}6.8.0-45-generic", f"{start}6.8.0-47-generic", f"{start}generic-hwe-24.04"]
    found = plan("rhel_9", replace(CURRENT, build="precompiled"), next_release="5.14.0-570.1.1.el9_6.x86_64")
    assert {f"kmod-nvidia-open-580.178.04-{one}" for one in ("5.14.0-503.11.1", "5.14.0-570.1.1")} <= set(names(found))


def test_what_the_kernel_is_to_load_and_how() -> None:
    assert plan("ubuntu_24.04", nvlink5=True, devices=(B200,)).modules == ("ib_umad",)
    assert plan("ubuntu_24.04", switches=4, devices=(H100,)).modules == plan().options == ()
    assert plan(devices=(GH200,)).options == ("nvidia NVreg_CoherentGPUMemoryMode=driver",)
    assert plan(wish=replace(CURRENT, module_options=("nvidia NVreg_X=1",))).options == ("nvidia NVreg_X=1",)
    assert checks(plan(wish=replace(CURRENT, module_options=("nvidia NVreg_X=1", "blacklist nvidia")))) == ["options"]


def test_a_host_with_a_folder_of_packages_needs_no_repository() -> None:
    found = plan("rhel_10", replace(CURRENT, repository="host"))
    assert (checks(found), found.repository) == ([], None)


def test_only_the_change_of_a_driver_that_is_loaded_or_in_use_disturbs() -> None:
    install = DriverPlan(change="install")
    assert [install.disturbs(None, []), install.disturbs("535.1", []), install.disturbs(None, ["77 (?)"])] == [False, True, True]
    assert not DriverPlan().disturbs("535.1", ["77 (?)"])


@pytest.mark.parametrize(
    ("installed", "wish", "noted", "rejected"),
    [
        ("nvidia-driver-pinning-595", CURRENT, True, []),
        ("nvidia-driver-pinning-580", CURRENT, False, []),
        ("nvidia-driver-pinning-580.178.04", CURRENT, False, []),
        ("nvidia-driver-pinning-580.159.03", CURRENT, True, []),
        # Without a pin of ours theirs decides.
        ("nvidia-driver-pinning-595", replace(CURRENT, repository="host"), False, ["packages"]),
        ("nvidia-driver-pinning-580", replace(CURRENT, repository="host"), False, []),
    ],
)
def test_a_pin_of_another_driver_is_noted_or_rejected(installed: str, wish: Wish, noted: bool, rejected: list[str]) -> None:
    found = plan("ubuntu_24.04", wish, packages={installed: "1-1"})
    assert checks(found) == rejected
    assert any(installed in note for note in found.notes) is noted
