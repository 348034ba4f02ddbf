# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A daemon's file of settings: what it means, and what is wrong with it, by line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.config_document import document, field, written

import settings_files
from gpushare_runtime.dashboard import main as dashboard
from gpushare_runtime.device_plugin.options import parse_arguments
from gpushare_runtime.extender import options as extender
from gpushare_runtime.settings.dashboard import DashboardConfig
from gpushare_runtime.settings.device_plugin import AUTO, DevicePluginConfig
from gpushare_runtime.settings.document import SettingsError, load, parse
from gpushare_runtime.settings.extender import ExtenderConfig
from gpushare_runtime.settings.schema import ChoiceType, ListType, NumberType, Setting, SwitchType, TextType, settings_of

KIND = "DevicePluginConfig"
TEXTS = {
    "nodeName": "gpu1",
    "runtimeClass": "nvidia",
    "metricsListen": "10.0.0.5:9440",
    "healthListen": "[::1]:9443",
    "listen": "[::1]:32766",
    "lease": "infra/mine",
}
# Readers have tokens of their own, or the file of one token, which is read.
OF_DASHBOARD: dict[str, object] = {"hostNames": ["a.example.org", "b"], "prometheus": None, "viewerTokenFile": None}
HEAD = f"apiVersion: gpushare.kubernetes/v1\nkind: {KIND}\n"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NODE_NAME", "KUBECONFIG", "KUBERNETES_SERVICE_HOST", "STATE_DIRECTORY", "LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)


def wrong(text: str | bytes) -> str:
    with pytest.raises(SettingsError) as found:
        parse(text if isinstance(text, bytes) else text.encode(), DevicePluginConfig, "x.yaml")
    return str(found.value)


def option(value: object, name: str) -> list[str]:
    """A setting as the words of a command line."""
    if isinstance(value, list):
        return [f"--{name}={each}" for each in value]
    return [f"--{name}"] if value is True else [f"--{name}={value}"]


def example(each: Setting) -> object:
    """A value that is not the default."""
    kind = each.kind
    if isinstance(kind, ListType):
        return ["/a", "/b"] if isinstance(kind.each, TextType) else [kind.each.least, kind.each.most]
    if isinstance(kind, TextType):
        return TEXTS.get(each.key, f"/{each.key}")
    if isinstance(kind, ChoiceType):
        return next(word for word in kind.words if word not in (each.default, AUTO))
    if isinstance(kind, NumberType):
        return kind.most if kind.least == each.default else kind.least
    return isinstance(kind, SwitchType)


@pytest.mark.parametrize(
    ("owner", "parse_arguments", "further"),
    # What isolation measures is evicted.
    [
        (DevicePluginConfig, parse_arguments, {"isolation": "watch"}),
        (ExtenderConfig, extender.parse_arguments, {}),
        (DashboardConfig, dashboard.parse_arguments, OF_DASHBOARD),
    ],
)
def test_each_setting_means_the_same_in_a_file_and_as_an_option(
    owner: type, parse_arguments: Callable[[Sequence[str]], object], further: dict[str, object], tmp_path: Path
) -> None:
    every = settings_of(owner)
    values = {key: value for key, value in ({each.key: example(each) for each in every} | further).items() if value is not None}
    assert [each.key for each in every if each.key in values and values[each.key] == each.default] == []
    names = {each.key: each.option for each in every}
    file = tmp_path / "x.yaml"
    file.write_text(written("a program", owner.__name__, values))
    by_file = parse_arguments(["--config", str(file)])
    assert by_file == parse_arguments([word for key, value in values.items() for word in option(value, names[key])])
    assert {key: field(file.read_text(), key) for key in values} == values


def test_what_is_wrong_is_said_by_line() -> None:
    said = wrong(f"{HEAD}overuseGrace: 5\nmemoryUnit: GB\n\nfoo: 1\ninContainer: 'true'\ncdiSpecDirs: [/a, b]\n")
    assert [line.partition(":")[0] for line in said.split("x.yaml:")[1:]] == ["3", "4", "6", "7", "8"]
    for part in (
        "x.yaml:3: overuseGrace: found 5; expected a number of seconds from 10 to 86400",
        "x.yaml:4: memoryUnit: found 'GB'; expected one of GiB, 256MiB, 128MiB, 64MiB, MiB",
        "x.yaml:6: found the field 'foo'; expected one of nodeName, ",
        "x.yaml:7: inContainer: found 'true'; expected true or false",
        "x.yaml:8: cdiSpecDirs: found ['/a', 'b']; expected an absolute path",
    ):
        assert part in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD.replace("/v1", "/v2"), "x.yaml:1: apiVersion: found 'gpushare.kubernetes/v2'; expected gpushare.kubernetes/v1"),
        ("nodeName: a\n", "kind: found nothing; expected DevicePluginConfig"),
        (f"{HEAD}overuse: evict\noveruse: report\n", "x.yaml:4: found 'overuse' again, after line 3"),
        (f"{HEAD}overuse: {{a: 1}}\n", "x.yaml:3: found a list or fields inside a field"),
        (f"{HEAD}cdiSpecDirs: [[/a]]\n", "x.yaml:3: found a list or fields inside a field"),
        (f"{HEAD}overuse: *a\n", "x.yaml:3: found "),
        (f"{HEAD}1: a\n", "x.yaml:3: found 1; expected the name of a field"),
        (f"{HEAD}overuse: !!python/name:os.system a\n", "x.yaml:3: found "),
        (f"{HEAD}tokenSeconds: {'9' * 5000}\n", "x.yaml:3: "),
        (f"{HEAD}overuseGrace: true\n", "overuseGrace: found True; expected a number"),
        ("a: b: c\n", "x.yaml:1: found "),
        ("[" * 20_000, "x.yaml"),
        ("- a\n", "found no fields"),
        ("", "found no fields"),
        (b"\xff\xfe", "found bytes that are not UTF-8"),
    ],
)
def test_a_file_that_is_none(text: str | bytes, said: str) -> None:
    assert said in wrong(text)


def test_a_file_that_cannot_be_read_or_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such"):
        load(tmp_path / "none", DevicePluginConfig)
    (tmp_path / "long").write_text(HEAD + "#" * 70_000)
    with pytest.raises(SettingsError, match="65536"):
        load(tmp_path / "long", DevicePluginConfig)


def test_the_environment_stands_for_what_a_file_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_text(document(KIND, {}))
    monkeypatch.setenv("NODE_NAME", "gpu7")
    monkeypatch.setenv("LOG_LEVEL", "debug")
    found = parse_arguments(["--config", str(tmp_path / "x")])
    assert (found.node, found.log_level) == ("gpu7", "debug")
    (tmp_path / "x").write_text(document(KIND, {"nodeName": "gpu8", "logLevel": "error"}))
    found = parse_arguments(["--config", str(tmp_path / "x")])
    assert (found.node, found.log_level) == ("gpu8", "error")
    (tmp_path / "x").write_text(document(KIND, {"nodeName": "gpu8"}))
    monkeypatch.setenv("LOG_LEVEL", "loud")
    with pytest.raises(SystemExit):
        parse_arguments(["--config", str(tmp_path / "x")])


@pytest.mark.parametrize(
    ("fields", "further", "said"),
    [
        ({"nodeName": "a"}, ["--overuse=evict"], "--overuse with a file of settings"),
        ({"nodeName": "a", "isolation": "none", "overuse": "evict"}, [], "isolation none with overuse evict: use isolation watch"),
        ({"nodeName": "a", "cdiDir": "/c"}, [], "cdiDir without hostRoot"),
        ({"nodeName": "a", "tokenFile": "/t"}, [], "seedTokenFile and tokenFile go together"),
        ({"nodeName": "a", "metricsListen": "0.0.0.0:9440"}, [], "metricsListen: metrics on 0.0.0.0 would be open to the network"),
        ({"nodeName": "a", "metricsListen": "127.0.0.1:99999"}, [], "metricsListen: "),
        ({"nodeName": "a", "healthListen": "127.0.0.1:0"}, [], "healthListen: "),
        ({}, [], "set NODE_NAME or nodeName"),
    ],
)
@pytest.mark.parametrize("option_", ["--config", "--check-config"])
def test_settings_that_do_not_fit_each_other(
    fields: dict[str, object], further: list[str], said: str, option_: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x").write_text(document(KIND, fields))
    with pytest.raises(SystemExit) as ended:
        parse_arguments([option_, str(tmp_path / "x"), *further])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_what_a_file_means(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_text(document(KIND, {"nodeName": "a", "memoryUnit": "GiB"}))
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["--check-config", str(tmp_path / "x")])
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" (")[0].split(":")[0] for line in lines] == [one.key for one in settings_of(DevicePluginConfig)]
    assert any(line.startswith("memoryUnit: GiB (given): ") for line in lines)
    assert any(line.startswith("overuseGrace: 60 (default): ") for line in lines)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tlsCert": "/a"}, "tlsKey and clientCa not given: TLS takes all of tlsCert, tlsKey, clientCa"),
        ({"listen": "0.0.0.0:32766"}, "listen 0.0.0.0:32766: plain http is for loopback addresses; give tlsCert, tlsKey, clientCa"),
        ({"listen": "localhost:32766"}, "x:3: listen: found 'localhost:32766'; expected an IP address and a port from 1 to 65535"),
        ({"lease": "kube-scheduler"}, "x:3: lease: found 'kube-scheduler'; expected namespace and name, such as"),
        ({"tokenFile": "/t"}, "seedTokenFile and tokenFile go together"),
    ],
)
def test_settings_of_the_extender_that_cannot_be(
    fields: dict[str, object], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x").write_text(document("ExtenderConfig", fields))
    with pytest.raises(SystemExit) as ended:
        extender.parse_arguments(["--check-config", str(tmp_path / "x")])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_file_that_the_process_may_not_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(SettingsError, match="Permission denied"):
        load(tmp_path / "x", ExtenderConfig)


@pytest.mark.parametrize("password", ["hush", "hu@hush", "9/hush", "9/hu@hush", "?hush#hush", "hush hush"])
def test_the_password_in_a_url_is_in_no_error(capsys: pytest.CaptureFixture[str], password: str) -> None:
    """Errors of a daemon are in the journal."""
    url = f"https://reader:{password}@prometheus.example.org"
    with pytest.raises(SettingsError) as found:
        parse(
            f"apiVersion: gpushare.kubernetes/v1\nkind: DashboardConfig\nprometheus: '{url}'\nhostNames: ['{url}']\n".encode(),
            DashboardConfig,
            "x.yaml",
        )
    with pytest.raises(SystemExit):
        dashboard.parse_arguments([f"--prometheus={url}"])
    for words in (str(found.value), capsys.readouterr().err):
        assert "…@prometheus.example.org" in words
        assert "hush" not in words
        assert "reader" not in words


def test_roles_chart_and_checks_are_as_the_settings_make_them() -> None:
    made = settings_files.files()
    assert len(made) > 20
    assert [name for name, text in made.items() if (settings_files.ROOT / name).read_text() != text] == []
