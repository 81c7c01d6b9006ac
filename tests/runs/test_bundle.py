"""`make gpu-bundle`: what it packs is unpacked elsewhere without network, whole or not at all."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lib.files import ROOT
from lib.runs import bundle
from lib.runs.machine import RunError
from tests.runs.test_paper_profile import qwen

MIB = 2**20


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> Path:
    """A bundle with a tiny model and no wheels, in parts of 4 MiB."""
    folder = tmp_path_factory.mktemp("bundle")
    model, tokenizer = qwen(vocab_size=1000)
    model.save_pretrained(folder / "tiny")
    tokenizer.save_pretrained(folder / "tiny")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bundle, "PART", 4 * MIB)
        bundle.pack(ROOT, folder / "parts", str(folder / "tiny"), [], None, "3.12")
    return folder / "parts"


def unpacked(parts: Path, *words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(parts / "unpack.py"), *words]
    return subprocess.run(command, cwd="/", capture_output=True, text=True)


def test_it_is_unpacked_elsewhere_and_runs_from_there(packed, tmp_path):
    """Without the results that are published, and without git."""
    names = sorted(path.name for path in packed.iterdir())
    count = len(names) - 2
    assert count > 1 and names[0] == "SHA256SUMS" and names[-1] == "unpack.py"
    sizes = [(packed / name).stat().st_size for name in names[1:-1]]
    assert sizes[:-1] == [4 * MIB] * (count - 1) and 0 < sizes[-1] <= 4 * MIB
    shutil.copytree(packed, tmp_path / "brought")
    done = unpacked(tmp_path / "brought", str(tmp_path / "there"))
    assert done.returncode == 0, done.stderr
    assert f"{count} parts are as they were packed" in done.stdout
    there = tmp_path / "there"
    assert not (there / "data/reference").exists() and not (there / "figures").exists()
    assert (there / "data/problems/manifest.json").read_bytes() == (
        ROOT / "data/problems/manifest.json"
    ).read_bytes()
    command = done.stdout.splitlines()[-1].partition(" && ")[2]
    environment = {key: value for key, value in os.environ.items() if key != "COUNTDOWN_RUNS"}
    planned = subprocess.run(
        f"{command} --plan", shell=True, cwd=there, env=environment, capture_output=True, text=True
    )
    assert planned.returncode == 0, planned.stderr
    assert f"{there}/model/tiny on " in planned.stdout and "8 stages, 0 of" in planned.stdout


@pytest.mark.parametrize("harm", ["cut", "changed", "gone"])
def test_a_part_that_is_not_as_it_was_is_named_and_nothing_is_unpacked(packed, tmp_path, harm):
    brought = tmp_path / "brought"
    shutil.copytree(packed, brought)
    part = brought / "countdown.tar.xz.01"
    whole = part.read_bytes()
    part.unlink()
    if harm != "gone":
        part.write_bytes(whole[:-1] if harm == "cut" else bytes([whole[0] ^ 1]) + whole[1:])
    done = unpacked(brought)
    assert done.returncode == 1 and "missing or damaged: countdown.tar.xz.01" in done.stderr
    assert not (brought / "countdown").exists()


def test_a_folder_that_holds_files_is_left_alone(packed):
    with pytest.raises(RunError, match="holds files"):
        bundle.pack(ROOT, packed, "", [], None, "3.12")


def test_what_is_missing_there_is_found_with_all_that_it_needs():
    """By a list of what is there; never PyTorch, nor what only notebooks need."""
    nothing = bundle.missing(ROOT, "", "3.12")
    assert {"trl", "datasets", "peft", "multiprocess", "pydantic-core", "numpy"} <= {*nothing}
    assert not {"torch", "triton", "papermill", "snakemake", "jupyterlab", "ipython"} & {*nothing}
    there = [name for name in nothing if name not in ("trl", "dill")]
    listed = "\n".join(f"{name.replace('-', '_')}==1.0" for name in there) + "\nx @ file:///y\n"
    assert bundle.missing(ROOT, listed, "3.12") == ["dill", "trl"]


def test_wheels_have_the_pinned_versions_for_that_python(monkeypatch, tmp_path):
    asked = []

    def run(command, **options):
        asked.extend(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(bundle.subprocess, "run", run)
    pinned = dict(
        line.partition(" ;")[0].split("==")
        for line in (ROOT / "requirements.txt").read_text().splitlines()
        if line.startswith(("trl==", "pyyaml=="))
    )
    said = bundle.fetch_wheels(ROOT, ["trl", "PyYAML"], tmp_path, "3.12")
    assert asked[-2:] == [f"trl=={pinned['trl']}", f"PyYAML=={pinned['pyyaml']}"]
    assert asked[asked.index("--python-version") + 1] == "3.12" and "2 for Python 3.12" in said
    with pytest.raises(RunError, match="does not pin nothing-like-it"):
        bundle.fetch_wheels(ROOT, ["nothing-like-it"], tmp_path, "3.12")


def test_a_model_that_cannot_be_had_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(RunError, match="MODEL=nobody/nothing is no folder"):
        bundle.copy_model(ROOT, "nobody/nothing", tmp_path)
