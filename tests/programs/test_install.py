"""The installation: the pins resolve for every available Python, and `make` uses them as
intended."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from lib.files import ROOT

PROJECT = "pyproject.toml", "requirements.txt"
PLACES = Path.home() / ".pyenv/versions", Path.home() / ".local/share/uv/python"


def name(requirement: str) -> str:
    """The package that a requirement asks for, in the one spelling that the index has for it."""
    return re.sub("[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def pins(file: str = "requirements.txt") -> dict[str, set[str]]:
    """The versions of every package of a file of pins: more than one where they differ between
    Pythons or machines."""
    versions: dict[str, set[str]] = {}
    for line in (ROOT / file).read_text().splitlines():
        if not line.startswith("#"):
            package, version = re.match(r"([\w.-]+)==(\S+)", line).groups()
            versions.setdefault(name(package), set()).add(version)
    return versions


TEXT = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
MINORS = 11, 12, 13
# No configuration of pip's but what it needs to reach the index at all.
BARE = {
    key: os.environ[key]
    for key in os.environ
    if not key.startswith("PIP_") or key in ("PIP_CERT", "PIP_PROXY")
}
BARE |= {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@cache
def pythons() -> dict[str, str]:
    """{version: program} of the Pythons from 3.11 to 3.13 on this machine."""
    programs = [sys.executable, *(f"/usr/bin/python3.{minor}" for minor in MINORS)]
    programs += [f"python3.{minor}" for minor in MINORS]
    for place in PLACES:
        programs += sorted(map(str, place.glob("*3.1[123]*/bin/python3")), reverse=True)
    found: dict[str, str] = {}
    for program in filter(shutil.which, programs):
        said = subprocess.run(
            [program, "-c", "import ensurepip, platform; print(platform.python_version())"], **TEXT
        )
        # a shim of pyenv's leads nowhere when its version is not the chosen one
        if said.returncode == 0:
            found.setdefault(said.stdout.strip(), program)
    return found


def patiently(command: list) -> subprocess.CompletedProcess:
    """A command of pip's, tried again where it fails: the way to the index is not always free."""
    for _ in range(3):
        said = subprocess.run(command, env=BARE, **TEXT)
        if said.returncode == 0 or re.search("ResolutionImpossible|unsatisfiable", said.stderr):
            break
    return said


@pytest.mark.slow
@pytest.mark.parametrize("version", sorted(pythons()))
def test_the_pins_resolve_in_an_empty_environment(version, tmp_path):
    """From the default index alone, with no PyTorch at hand; all that would be installed is
    pinned."""
    subprocess.run([pythons()[version], "-m", "venv", tmp_path / "empty"], check=True, **TEXT)
    pip = [tmp_path / "empty/bin/python", "-m", "pip", "install"]
    said = patiently([*pip, "pip>=25"])  # as `make` does
    if said.returncode:
        pytest.skip(f"the package index is out of reach: {said.stderr[:300]}")
    for file in (
        *PROJECT,
        *(path.relative_to(ROOT) for path in (ROOT / "lib").rglob("__init__.py")),
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    report = tmp_path / "report.json"
    said = patiently(
        [
            *pip,
            "--dry-run",
            "--report",
            report,
            "-c",
            tmp_path / "requirements.txt",
            f"{tmp_path}[test]",
        ]
    )
    assert said.returncode == 0, said.stdout[-3000:] + said.stderr[-3000:]
    chosen = {
        name(package["metadata"]["name"]): package["metadata"]["version"]
        for package in json.loads(report.read_text())["install"]
    }
    assert chosen.pop("countdown-study") and {"torch", "pytest"} < set(chosen)
    assert {
        package: version
        for package, version in chosen.items()
        if version not in pins().get(package, ())
    } == {}


@pytest.fixture(scope="module")
def uv(tmp_path_factory) -> Path:
    """The tool of `make lock`, which resolves for any Python and system, whichever this one is."""
    folder = tmp_path_factory.mktemp("uv")
    version = re.search(r"^UV \?= (\S+)", (ROOT / "Makefile").read_text(), re.M)[1]
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, **TEXT)
    said = patiently([folder / "bin/python", "-m", "pip", "install", f"uv=={version}"])
    if said.returncode:
        pytest.skip(f"the package index is out of reach: {said.stderr[:300]}")
    return folder / "bin/uv"


@pytest.mark.slow
@pytest.mark.parametrize("minor", MINORS)
def test_what_the_wheel_of_vllm_declares_is_met_by_the_pins(uv, minor):
    """On a GPU machine with Linux: `pip install -c requirements.txt -e '.[vllm]'`, resolved and not
    installed."""
    place = ["--python-version", f"3.{minor}", "--python-platform", "x86_64-manylinux_2_28"]
    form = ["--quiet", "--no-config", "--no-header", "--no-annotate"]
    asked = ["-c", ROOT / "requirements.txt", "--extra", "vllm", ROOT / "pyproject.toml"]
    said = patiently([uv, "pip", "compile", *form, *place, *asked])
    assert said.returncode == 0, said.stderr[-3000:]
    chosen = dict(line.split(" ")[0].split("==") for line in said.stdout.splitlines())
    assert (
        chosen["vllm"] in pins()["vllm"]
        and chosen["torch"] in pins()["torch"]
        and len(chosen) > 250
    )
    assert {
        package: version
        for package, version in chosen.items()
        if version not in pins()[name(package)]
    } == {}


def test_every_dependency_is_pinned_and_no_pin_names_a_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = project["dependencies"] + project["optional-dependencies"]["test"]
    assert {name(requirement) for requirement in asked} <= set(pins()), (
        "`make lock` was not run since"
    )
    for package, versions in pins("requirements-vllm.txt").items():
        assert versions <= pins().get(package, versions), "vLLM changes a version: `make lock`"
    (wanted,) = project["optional-dependencies"]["vllm"]
    makefile = (ROOT / "Makefile").read_text()
    version = re.search(r"^VLLM \?= (\S+)", makefile, re.M)[1]
    assert wanted.startswith(f"vllm=={version};") and pins()["vllm"] == {version}, (
        "one vLLM, on CPUs and on GPUs"
    )
    for file in ("requirements.txt", "requirements-vllm.txt"):
        assert not re.search("://| @ |^-", (ROOT / file).read_text(), re.M)


def test_the_lock_of_uv_and_the_pins_are_one():
    """requirements.txt is the export of uv.lock, which asks for what pyproject.toml asks for, of
    the public index."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    locked = {}
    for package in lock["package"]:
        if package["source"] == {"editable": "."}:
            own = package["metadata"]
            continue
        assert package["source"] == {"registry": "https://pypi.org/simple"}, package["name"]
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        assert files and all(
            one["url"].startswith("https://files.pythonhosted.org/") for one in files
        ), package["name"]
        assert all(one["hash"].startswith("sha256:") for one in files), package["name"]
        locked.setdefault(name(package["name"]), set()).add(package["version"])
    assert locked == pins(), "`make lock` was not run since"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name(one) for some in project["optional-dependencies"].values() for one in some}
    asked = {name(one) for one in project["dependencies"]} | extras
    assert {name(one["name"]) for one in own["requires-dist"]} == asked, (
        "`make lock` was not run since"
    )
    assert lock["requires-python"] == project["requires-python"]


STAND_IN = """#!/bin/sh
# stands for Python and pip: writes down what it is asked for, and fails as it is told to
echo "$*" >>asked.txt
case "$*" in
    *"-m venv"*)
        mkdir -p .venv/bin .venv/lib/python3.11/site-packages
        cp "$0" .venv/bin/python ;;
    *--index-url*) exit "${NO_BUILDS:-0}" ;;
    *"[test]") exit "${CUT_OFF:-0}" ;;
esac
"""


@pytest.fixture
def make(tmp_path):
    """`make .venv/.installed` with a stand-in for Python: (exit status, what it said, what pip was
    asked for)."""
    for file in ("Makefile", *PROJECT):
        shutil.copy(ROOT / file, tmp_path / file)
    stand_in = tmp_path / "python"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)

    def run(*variables: str, **environment: str) -> tuple[int, str, list[str]]:
        (tmp_path / "asked.txt").unlink(missing_ok=True)
        command = [
            "make",
            "--no-print-directory",
            ".venv/.installed",
            "PYTHON=./python",
            *variables,
        ]
        clean = {
            key: os.environ[key]
            for key in os.environ
            if key not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
        }
        said = subprocess.run(command, cwd=tmp_path, env={**clean, **environment}, **TEXT)
        asked = tmp_path / "asked.txt"
        return (
            said.returncode,
            said.stdout + said.stderr,
            asked.read_text().splitlines() if asked.exists() else [],
        )

    return run


def test_make_says_its_steps_and_takes_the_builds_for_cpus(make):
    torch = f"torch=={min(pins()['torch'])}"
    status, said, asked = make("TORCH=cpu", "CPU_BUILDS=file:///mirror")
    assert (
        status == 0
        and re.findall(r"Step (\d)/3", said) == ["1", "2", "3"]
        and "does not give it" not in said
    )
    *_, builds, rest, question = asked
    assert f"--index-url file:///mirror {torch}" in builds
    assert "--index-url" not in rest
    assert "--no-deps" in builds, "everything else is taken from the default index"
    assert rest.endswith("-c requirements.txt -e .[test]")
    assert "torch.version.cuda" in question, "which build it was is said at the end"
    status, said, asked = make()
    assert (status, asked) == (0, []) and "Step" not in said, "installed already"


def test_make_goes_on_without_the_builds_for_cpus_and_says_so(make):
    status, said, asked = make("TORCH=cpu", "CPU_BUILDS=file:///mirror", NO_BUILDS="1")
    assert (
        status == 0
        and "file:///mirror does not give it: the build of the default index instead" in said
    )
    assert asked[-2].endswith("[test]")


def test_make_takes_the_default_build_where_it_is_told_to(make):
    status, said, asked = make("TORCH=default")
    assert (
        status == 0
        and not any("--index-url" in line for line in asked)
        and "from the default index" in said
    )
    status, said, asked = make("TORCH=gpu", "-B")
    assert (
        status == 2
        and "TORCH is cpu or default, not gpu" in said
        and not any("pip" in line for line in asked)
    )


def test_an_installation_that_was_cut_off_is_taken_up_again(make, tmp_path):
    status, said, _ = make("TORCH=cpu", CUT_OFF="1")
    assert status == 2 and "Step 3/3" in said and not (tmp_path / ".venv/.installed").exists()
    packages = tmp_path / ".venv/lib/python3.11/site-packages"
    whole = packages / "bleach-6.0.dist-info"
    half = packages / "torch-2.0.dist-info"
    # a package's licences hold such a folder of another's
    within = whole / "licenses/html5lib-1.0.dist-info"
    for folder in (whole, half, within):
        folder.mkdir(parents=True)
        (folder / "METADATA").touch()
    (whole / "RECORD").touch()
    status, _, asked = make("TORCH=cpu")
    assert status == 0 and (tmp_path / ".venv/.installed").exists() and within.exists()
    assert not half.exists(), "pip would take it for installed"
    assert not any("venv" in line for line in asked), "the environment is kept"
