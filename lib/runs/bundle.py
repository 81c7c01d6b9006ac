"""`make gpu-bundle`: what `make gpu-headline` needs, for a machine without network, in parts that
are small enough to be carried there one by one. `lib.runs.unpack` puts them together again."""

import hashlib
import io
import lzma
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from lib.files import shown
from lib.runs.folder import said
from lib.runs.hashes import model_folder
from lib.runs.machine import RunError

PART = 60 * 2**20  # bytes of a part at most
LEFT_OUT = ("data/reference", "figures", "uv.lock")  # results: 360 MB that no run of it reads
# of the packages of the project, those that only notebooks in Jupyter and Snakemake need
NOTEBOOKS = {"papermill", "snakemake", "jupyterlab", "ipykernel", "ipywidgets", "latex2mathml"}
TORCH = ("torch", "triton", "nvidia-", "cuda-")  # gigabytes that a machine with a card has already
# manylinux tags that pip must be given one by one
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 27, 28, 31, 34, 35)]
PLATFORMS += ["manylinux1_x86_64", "manylinux2014_x86_64"]


def pack(
    root: Path, output: Path, model: str, wheels: list[str], have: Path | None, python: str
) -> None:
    """Write the parts, SHA256SUMS and unpack.py to `output`, and say what is in them.

    model: a folder, or a hub name, which is downloaded; "": none. wheels: packages to pack at the
    pinned version. have: what `pip list --format=freeze` prints on the other machine; packages that
    are not in it are packed. python: its version of Python. Raises RunError if `output` holds other
    files, if git or pip fails, or if the model cannot be had."""
    if output.exists() and any(output.iterdir()):
        raise RunError(f"{shown(output)} holds files: name an empty folder, or delete it")
    with tempfile.TemporaryDirectory(prefix="bundle-") as scratch:
        folder = Path(scratch)
        print(copy_sources(root, folder))
        names = wheels or (missing(root, have.read_text(), python) if have else [])
        print(fetch_wheels(root, names, folder / "wheels", python))
        print(copy_model(root, model, folder / "model"))
        parts = Parts(output)
        with (
            io.BufferedWriter(parts) as whole,
            lzma.open(whole, "wb", preset=0) as packed,
            tarfile.open(fileobj=packed, mode="w|") as archive,
        ):
            for path in sorted(folder.iterdir()):
                archive.add(path, path.name)
    sums = "".join(f"{digest}  {name}\n" for name, digest in parts.sums)
    (output / "SHA256SUMS").write_text(sums)
    shutil.copyfile(Path(__file__).with_name("unpack.py"), output / "unpack.py")
    size = sum((output / name).stat().st_size for name, _ in parts.sums)
    print(
        f"{len(parts.sums)} parts of at most {PART // 2**20} MiB, {size / 1e6:.0f} MB in all, are "
        f"in {shown(output)}; there, with all of its files in one folder: python3 unpack.py"
    )


class Parts(io.RawIOBase):
    """A file that is written as several, each of at most PART bytes. sums: the name and the sha256
    of each that is complete."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.sums: list[tuple[str, str]] = []
        self.part = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self.part += data
        while len(self.part) > PART:
            self.end(PART)
        return len(data)

    def end(self, size: int) -> None:
        """Write the first bytes of what is held as a part."""
        name = f"countdown.tar.xz.{len(self.sums):02}"
        block = bytes(self.part[:size])
        del self.part[:size]
        (self.folder / name).write_bytes(block)
        self.sums.append((name, hashlib.sha256(block).hexdigest()))

    def close(self) -> None:
        if self.part:
            self.end(len(self.part))
        super().close()


# --- what is packed -------------------------------------------------------------------------------


def copy_sources(root: Path, folder: Path) -> str:
    """Unpack the files of the last commit, without published results. Returns what they are."""
    git = ("git", "-C", str(root))
    archive = folder / "sources.tar"
    excluded = [f":(exclude){name}" for name in LEFT_OUT]
    command = [*git, "archive", "--format=tar", "-o", str(archive), "HEAD", "--", ".", *excluded]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RunError(f"git cannot pack the sources: {done.stderr.strip()}")
    with tarfile.open(archive) as sources:
        sources.extractall(folder, filter="data")
    archive.unlink()
    changed = said(*git, "status", "--porcelain", "--untracked-files=no")
    note = "; changes that are not committed are left out" if changed else ""
    return f"sources  commit {said(*git, 'rev-parse', '--short', 'HEAD')}{note}"


def copy_model(root: Path, model: str, target: Path) -> str:
    """Copy the files of a model's folder, or of the hub's, into a folder of its name."""
    if not model:
        return "model    none"
    name = Path(model.partition("@")[0]).name
    found = model_folder(root / model)
    if found is None:
        from huggingface_hub import snapshot_download

        hub, _, revision = model.partition("@")
        patterns = ["*.json", "*.safetensors", "*.txt", "*.model"]
        try:
            found = Path(snapshot_download(hub, revision=revision or None, allow_patterns=patterns))
        except Exception as error:  # of the network, in many forms
            raise RunError(
                f"MODEL={model} is no folder with a config.json, and the hub does not give it "
                f"({type(error).__name__}); MODEL= packs none"
            ) from error
    files = [path for path in sorted(found.iterdir()) if path.is_file() and path.name[0] != "."]
    (target / name).mkdir(parents=True)
    for path in files:
        shutil.copyfile(path, target / name / path.name)
    size = sum(path.stat().st_size for path in files)
    return f"model    {name}, {size / 1e6:,.0f} MB before it is compressed"


def fetch_wheels(root: Path, names: list[str], target: Path, python: str) -> str:
    """Download the wheels of packages at their pinned versions. Returns what they are."""
    if not names:
        return (
            "wheels   none: WHEELS='trl datasets' names some, HAVE=list.txt finds what is missing"
        )
    pinned = pins(root, python)
    unknown = [name for name in names if spelt(name) not in pinned]
    if unknown:
        raise RunError(f"requirements.txt does not pin {', '.join(unknown)}")
    wanted = [f"{name}=={pinned[spelt(name)]}" for name in names]
    options = ["--no-deps", "--only-binary=:all:", "--implementation", "cp"]
    options += ["--python-version", python, "--quiet", "--dest", str(target)]
    for platform in PLATFORMS:
        options += ["--platform", platform]
    done = subprocess.run([sys.executable, "-m", "pip", "download", *options, *wanted], text=True)
    if done.returncode:
        raise RunError("pip cannot download these wheels: see above")
    return f"wheels   {len(wanted)} for Python {python}: {', '.join(wanted)}"


def missing(root: Path, have: str, python: str) -> list[str]:
    """The packages that the headline needs, with all that these need, and that are not in a list of
    `pip list --format=freeze`. PyTorch and what it brings are never in it."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    there = {spelt(re.split("==| @ ", line)[0]) for line in have.splitlines() if line.strip()}
    seen: set[str] = set()
    open_names = needed(project["dependencies"], python)
    while open_names:
        name = open_names.pop()
        if name in seen or name in NOTEBOOKS or name.startswith(TORCH):
            continue
        seen.add(name)
        try:
            open_names += needed(requires(name) or [], python)
        except PackageNotFoundError as error:
            raise RunError(f"{name} is not installed here, so nobody knows its needs") from error
    return sorted(seen - there)


def needed(requirements: Iterable[str], python: str) -> list[str]:
    """The packages that requirements ask for on Linux, without their extras."""
    machine = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    machine |= {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}
    parsed = map(Requirement, requirements)
    return [spelt(one.name) for one in parsed if not one.marker or one.marker.evaluate(machine)]


def pins(root: Path, python: str) -> dict[str, str]:
    """The pinned version of each package for a Python, by its name."""
    found = {}
    for line in (root / "requirements.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        if names := needed([line], python):
            found[names[0]] = re.split("==| ;", line)[1].strip()
    return found


def spelt(name: str) -> str:
    """The name of a package in the one spelling that the index has for it."""
    return re.sub("[-_.]+", "-", name.partition("[")[0].strip()).lower()
