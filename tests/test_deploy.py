"""The files that operators copy: what they name exists, and what they promise of users, rights and ports is so."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
import yaml
from desk_site import BASE, Site
from fastapi.testclient import TestClient
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from typer.main import get_command

from app.cli.main import app
from app.domain.settings import PREFIX, Settings
from app.web.server import MAX_UPLOAD

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "docs" / "deploy"
PORT = Settings.model_fields["port"].default
OURS = tomllib.loads((ROOT / "pyproject.toml").read_text())
[TORCH] = [line for line in OURS["project"]["dependencies"] if line.startswith("torch==")]


def flags_exist(line: str) -> None:
    """A command of ours on a line of words: its name and its flags are known."""
    command, *words = shlex.split(line)
    known = get_command(app).commands[command]  # type: ignore[attr-defined]
    assert isinstance(known, typer.core.TyperCommand)
    flags = {flag for parameter in known.params for flag in parameter.opts}
    given = [word for word in words if word.startswith("--")]
    assert set(given) <= flags, given


def instructions() -> list[tuple[str, str]]:
    lines = [line for line in (ROOT / "Containerfile").read_text().splitlines() if not line.startswith("#")]
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in whole.splitlines() if line.strip()]


def arguments(name: str) -> list[str]:
    return [rest for found, rest in instructions() if found == name]


def test_the_image_runs_as_a_user_with_one_volume_and_no_secrets():
    names = [name for name, _ in instructions()]
    [user], [volume], [port] = arguments("USER"), arguments("VOLUME"), arguments("EXPOSE")
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user)
    made = re.search(r"groupadd --gid (\d+) (\w+) && useradd --uid (\d+) --gid \1 ", "\n".join(arguments("RUN")))
    assert made is not None, "else the user's group in /etc/passwd is another one than it runs with"
    assert user == f"{made[3]}:{made[1]}"
    assert names.index("USER") > max(at for at, name in enumerate(names) if name in ("RUN", "COPY"))
    assert "ADD" not in names
    [variables] = arguments("ENV")
    given = dict(pair.split("=", 1) for pair in variables.split())
    ours = {key.removeprefix(PREFIX).lower(): value for key, value in given.items() if key.startswith(PREFIX)}
    assert ours["data_dir"] == volume
    assert given["HF_HOME"].startswith(f"{volume}/{Settings(data_dir=volume).models_folder.name}/"), "no backup has it"
    Settings.model_validate({**ours, "data_dir": Path(volume)})
    secret = {key for key, field in Settings.model_fields.items() if not field.repr}
    assert not secret & ours.keys()
    assert not re.search(r"password|token|secret|api_key", (ROOT / "Containerfile").read_text(), re.IGNORECASE)
    assert int(port) == PORT


def test_the_image_serves_on_all_its_addresses_and_looks_after_itself(tmp_path):
    assert json.loads(arguments("ENTRYPOINT")[0]) == ["warmdesk"]
    command = json.loads(arguments("CMD")[0])
    flags_exist(shlex.join(command))
    assert command == ["serve", "--host", "0.0.0.0", "--port", str(PORT)]
    [check] = arguments("HEALTHCHECK")
    *_, program = json.loads(check[check.index("CMD") + 3 :])
    compile(program, "healthcheck", "exec")
    [url] = re.findall(r"http://[\w.:/]+", program)
    site = Site(tmp_path, host="0.0.0.0", public_url="https://help.example.com")
    with TestClient(site.app, base_url=BASE) as client:
        assert client.get(url).json() == {"status": "ok"}
    site.close()


def test_the_image_gets_what_it_is_made_of_and_nothing_else():
    copied = [source for rest in arguments("COPY") if "--from" not in rest for source in rest.split()[:-1]]
    assert all((ROOT / source).exists() for source in copied)
    ignored = (ROOT / ".containerignore").read_text().split("\n")
    assert {line[1:] for line in ignored if line.startswith("!")} == set(copied)
    packages = re.search(r"^packages = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert set(re.findall(r'"(\w+)"', packages[1])) | {"data"} <= set(copied)
    assert next(line for line in ignored if line and line[0] not in "!#") == "*"
    run = "\n".join(arguments("RUN"))
    assert f'--index-url "$TORCH_INDEX" {TORCH}' in run
    for text in (run, (ROOT / "Makefile").read_text(), (ROOT / "docs/gpu.md").read_text()):
        assert re.findall(r"torch==[\d.]+", text) == [TORCH], "PyTorch would be installed twice"


def test_the_lock_is_of_these_packages_and_from_pypi():
    """A lock made behind a mirror names addresses that nobody else reaches."""
    text = (ROOT / "uv.lock").read_text()
    assert set(re.findall(r"https?://([^/\"]+)", text)) == {"pypi.org", "files.pythonhosted.org"}
    packages = tomllib.loads(text)["package"]
    [desk] = [package for package in packages if package["name"] == "warmdesk"]
    locked = {
        (one["name"], SpecifierSet(one.get("specifier", "")), *re.findall(r"extra == '(\w+)'", one.get("marker", "")))
        for one in desk["metadata"]["requires-dist"]
    }
    groups = [([], OURS["project"]["dependencies"])]
    groups += [([extra], lines) for extra, lines in OURS["project"]["optional-dependencies"].items()]
    wanted = [(line, extra) for extra, lines in groups for line in map(Requirement, lines)]
    assert locked == {(canonicalize_name(line.name), line.specifier, *extra) for line, extra in wanted}, "make lock"
    pins = re.findall(r"^([\w-]+)==([^\s;]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    versions = {(package["name"], package["version"]) for package in packages}
    assert versions - set(pins) == {("warmdesk", OURS["project"]["version"]), ("torch", TORCH.removeprefix("torch=="))}


def test_a_desk_is_installed_without_the_packages_of_tests(tmp_path):
    for goal, extras in ("demo", []), ("develop", ["dev"]), ("test", ["dev", "gpu"]):
        command = ["make", "-n", f"VENV={tmp_path}", goal]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        installed = re.findall(r"--extra (\w+)", listed), re.findall(r"--editable '\.(?:\[(\w+)\])?'", listed)
        # Listed again by the second make, for which nothing is there yet.
        assert [list(dict.fromkeys(names)) for names in installed] == [extras, ["", *extras]], "with uv, with pip"


def test_the_quick_tests_exist():
    """Was wrong once: two files were merged into others, and `make quick` ran none."""
    listed = subprocess.run(["make", "-n", "quick"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = re.findall(r"tests/test_\w+\.py", listed)
    assert len(files) > 10
    assert [name for name in files if not (ROOT / name).is_file()] == []


def unit(name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / name).read_text().splitlines():
        if line and line[0] not in "#[":
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("name", ["warmdesk.service", "warmdesk-backup.service"])
def test_a_service_may_write_its_own_folders_only(name):
    service = unit(name)
    for key, value in {
        "User": "warmdesk",
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "CapabilityBoundingSet": "",
        "UMask": "0077",
        "StateDirectory": "warmdesk warmdesk-backups",
        "StateDirectoryMode": "0700",
    }.items():
        assert service[key] == [value], key
    [command] = service["ExecStart"]
    [ours] = re.findall(r"warmdesk/bin/warmdesk ((?:[^'\"]|\"[^\"]*\")+)", command)
    flags_exist(ours)
    assert "--data-dir /var/lib/warmdesk" in command
    assert "MemoryDenyWriteExecute" not in service


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_takes_the_units(tmp_path):
    for file in DEPLOY.glob("warmdesk*.[st]*"):
        (tmp_path / file.name).write_text(file.read_text().replace("/opt/warmdesk/bin/warmdesk", sys.executable))
    files = sorted(map(str, tmp_path.iterdir()))
    assert len(files) == 3
    ran = subprocess.run(["systemd-analyze", "verify", "--man=no", *files], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("name", ["nginx.conf", "Caddyfile"])
def test_a_proxy_leads_to_the_desk_streams_and_takes_uploads(name):
    text = re.sub(r"#.*", "", (DEPLOY / name).read_text())
    assert re.findall(r"(?:proxy_pass http://|reverse_proxy )([\w.:]+)", text) == [f"127.0.0.1:{PORT}"]
    assert text.count("{") == text.count("}")
    [size] = re.findall(r"(?:client_max_body_size|max_size) (\d+)(?:m|MiB)\b", text)
    assert int(size) << 20 == MAX_UPLOAD
    assert "proxy_buffering off;" in text or "flush_interval -1" in text
    assert "X-Request-ID" in text
    # Caddy speaks HTTP/2 by itself. Over HTTP/1.1 a browser opens six connections, and an open chat keeps one of them.
    assert name == "Caddyfile" or "listen 443 ssl http2;" in text


def test_nginx_says_what_the_desk_believes():
    """One address and not a list: what a customer sends as X-Forwarded-For is replaced. Caddy does so by itself."""
    text = (DEPLOY / "nginx.conf").read_text()
    for line in ("Host $host", "X-Forwarded-For $remote_addr", "X-Forwarded-Proto $scheme"):
        assert f"proxy_set_header {line};" in text
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    assert all(line.endswith((";", "{", "}")) for line in lines if line)


def test_alerts_are_of_metrics_that_there_are(tmp_path):
    rules = [rule for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 5
    site = Site(tmp_path)
    with TestClient(site.app, base_url=BASE, client=("127.0.0.1", 1)) as client:
        text = client.get("/metrics").text
    site.close()
    there = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    there |= {f"{name}_bucket" for name in re.findall(r"^# TYPE (\S+) histogram", text, re.MULTILINE)} | {"up"}
    functions = {"increase", "rate", "sum", "by", "le", "and", "min_over_time", "histogram_quantile"}
    for rule in rules:
        assert (
            {"alert", "expr", "labels", "annotations"}
            <= rule.keys()
            <= {"alert", "expr", "for", "labels", "annotations"}
        )
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "what_to_do"}
        expression = re.sub(r"\{[^}]*\}|\[\w+\]", "", rule["expr"])
        named = set(re.findall(r"[a-zA-Z_:][\w:]*", expression)) - functions
        assert named
        assert named <= there, named - there
        assert all(expression.count(one) == expression.count(other) for one, other in ("()", "{}", "[]"))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no Prometheus here")
def test_alerts_fire_when_they_must_and_not_before():
    command = ["promtool", "test", "rules", str(Path(__file__).with_name("alerts_test.yml"))]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
