"""Unpack what `make gpu-bundle` has packed: `python3 unpack.py` in the folder of its parts.

Every part is compared with SHA256SUMS first. It needs nothing but Python 3.11, and no network."""

import hashlib
import io
import lzma
import subprocess
import sys
import tarfile
from pathlib import Path


def main(parts: Path, target: Path) -> None:
    """Verify the parts, join them, unpack them into `target`, install the wheels beside the
    sources, and say how to go on."""
    listed = [line.split() for line in (parts / "SHA256SUMS").read_text().splitlines()]
    wrong = [name for digest, name in listed if digest != digest_of(parts / name)]
    if wrong:
        sys.exit(f"! missing or damaged: {', '.join(wrong)}; bring these parts once more")
    print(f"{len(listed)} parts are as they were packed")
    with (
        lzma.open(io.BufferedReader(Joined([parts / name for _, name in listed]))) as unpacked,
        tarfile.open(fileobj=unpacked, mode="r|") as archive,
    ):
        archive.extractall(target, filter="data")
    wheels = sorted((target / "wheels").glob("*.whl"))
    if wheels:
        options = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--upgrade"]
        pip = [sys.executable, "-m", "pip", "install", *options, "--target", target / "site"]
        subprocess.run([*pip, *wheels], check=True)
    models = sorted(str(path.parent) for path in target.resolve().glob("model/*/config.json"))
    model = f" --model {models[0]}" if models else ""
    print(f"cd {target.resolve()} && PYTHONPATH=site {sys.executable} -m lib.runs headline{model}")


def digest_of(path: Path) -> str:
    """The sha256 of a file, "" if it is missing."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Joined(io.RawIOBase):
    """Files that are read one after the other, as if they were one."""

    def __init__(self, paths: list[Path]):
        self.paths = list(paths)
        self.file: io.FileIO | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        while self.file or self.paths:
            self.file = self.file or self.paths.pop(0).open("rb", buffering=0)
            if count := self.file.readinto(buffer):
                return count
            self.file.close()
            self.file = None
        return 0


if __name__ == "__main__":
    here = Path(__file__).parent
    main(here, Path(sys.argv[1]) if sys.argv[1:] else here / "countdown")
