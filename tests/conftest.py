"""Settings that must precede the import of torch (one thread, no network), and the fixtures that
all tests share."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

os.environ.update(
    OMP_NUM_THREADS="1",
    TOKENIZERS_PARALLELISM="false",
    HF_HUB_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
)
# Tests start some two hundred processes: what one has compiled, the others read, even where it is
# not kept otherwise.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# jsonschema is imported by some tests before lib.runs, which says why it does without this module.
sys.modules.setdefault("rfc3987_syntax", None)
# No test sees what was made in data/runs, and none leaves anything there: set before anything
# imports lib.files.
OURS = "runs-of-tests-"
# workers take that of the process that started them
if OURS not in os.environ.get("COUNTDOWN_RUNS", ""):
    RUNS_OF_TESTS = tempfile.TemporaryDirectory(prefix=OURS)  # deleted when this process ends
    os.environ["COUNTDOWN_RUNS"] = RUNS_OF_TESTS.name
RUNS_OF_THE_USER = Path(__file__).resolve().parents[1] / "data/runs"
# files and folders of the user's that this process has opened, listed or changed
USED: list[str] = []


def note_use(event: str, arguments: tuple) -> None:
    if event in (
        "open",
        "os.listdir",
        "os.scandir",
        "os.mkdir",
        "os.rename",
        "os.remove",
        "os.rmdir",
    ):
        path = arguments[0]
        if isinstance(path, str | Path) and "data/runs" in str(path):
            USED.extend(
                [str(path)] if Path(path).absolute().is_relative_to(RUNS_OF_THE_USER) else []
            )


sys.addaudithook(note_use)


@pytest.fixture(autouse=True)
def leaves_the_users_runs_alone() -> Iterator[None]:
    """Every test of the suite is held to this, and only the one that did it fails."""
    yield
    used = USED[:3]
    USED.clear()
    assert not used, f"a test used runs of the user's: {used}"


@pytest.fixture(autouse=True)
def code_may_be_edited_while_tests_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Run` refuses a kernel whose code was edited. Tests run for minutes, while somebody may edit
    lib/; the refusal is tested in a process of its own."""
    monkeypatch.setattr("lib.runs.folder.refuse_edited_code", lambda: None)


def copy_of_the_repository(folder: Path) -> Path:
    """All files that are or could be committed, in `folder`. Nobody may write to its
    data/reference, a link to ours."""
    from lib.files import ROOT

    listed = ["git", "ls-files", "-co", "--exclude-standard"]
    for name in subprocess.run(
        listed, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines():
        if (ROOT / name).is_file() and not name.startswith("data/reference/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    (folder / "data/reference").symlink_to(ROOT / "data/reference")
    return folder


@cache
def this_project():
    """The runs of this checkout, resolved once for all tests of a worker that only read them; a
    `Project`."""
    from lib.runs.plan import Project

    return Project()


SERVER = "WARM_KERNELS_OF_TESTS"  # what `warm.kernels` yields: workers inherit it
# What kernels import beside what studies do
TRAINING = (
    "datasets papermill torch transformers.masking_utils transformers.modeling_layers "
    "transformers.modeling_utils transformers.models.auto.auto_factory "
    "transformers.models.qwen2.modeling_qwen2 trl.rewards"
)


def pytest_configure(config: pytest.Config) -> None:
    """Start the process from which kernels are forked (lib/runs/warm.py), once for all workers; it
    ends with the session. Tests that kill processes start their kernels as users do."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    from lib.runs.warm import STUDIES, kernels

    stack = ExitStack()
    os.environ[SERVER] = json.dumps(stack.enter_context(kernels(f"{STUDIES} {TRAINING}")))
    stack.callback(os.environ.pop, SERVER)
    config.add_cleanup(stack.close)


@pytest.fixture(scope="session")
def warm() -> dict[str, str]:
    """What an environment has to say for kernels to be forked from that process; nothing where
    there is none."""
    from lib.runs.warm import SOCKET, WAIT

    environment = json.loads(os.environ[SERVER])
    if environment:
        end = time.monotonic() + WAIT
        with socket.socket(socket.AF_UNIX) as knock:  # so that it imports while the test begins
            while knock.connect_ex(environment[SOCKET]) and time.monotonic() < end:
                time.sleep(0.1)
    return environment


@pytest.fixture
def warm_kernels(warm, monkeypatch) -> None:
    """Runs of this test start their kernels warm."""
    for key, value in warm.items():
        monkeypatch.setenv(key, value)


@pytest.fixture
def unrendered(monkeypatch) -> None:
    """Figures are built and laid out, and their files are empty: for tests of tables. Others render
    every figure."""
    from matplotlib.figure import Figure

    def savefig(figure: Figure, path: Path, **_) -> None:
        if path.suffix == ".png":  # `plots.save` writes it first, and the .pdf with the same layout
            figure.draw_without_rendering()
        path.touch()

    monkeypatch.setattr(Figure, "savefig", savefig)


def linear(read: Callable[[str], object], text: str) -> bool:
    """Whether four times the text takes about four times as long, at the best of five tries: in
    quadratic time it takes sixteen. The clock is this process's own, and 20 ms are its noise; no
    bound in seconds holds on every machine."""

    def seconds(some: str) -> float:
        began = time.process_time()
        read(some)
        return time.process_time() - began

    quarter = text[: len(text) // 4]
    return any(seconds(text) < 8 * seconds(quarter) + 0.02 for _ in range(5))


# The longest files first (--dist loadfile --no-loadscope-reorder), lest one worker is left alone
# with them at the end.
LONGEST = [
    f"test_{name}"
    for name in (
        "notebooks",
        "defaults",
        "make",
        "studies",
        "execute",
        "plan",
        "paper_profile",
        "contributing",
        "recomputed",
        "training",
        "explorer",
        "exercises",
        "gpu24",
    )
]


def pytest_collection_modifyitems(items):
    items.sort(
        key=lambda item: (
            LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST)
        )
    )


@pytest.fixture(scope="session")
def template(tmp_path_factory) -> Path:
    """What each `checkout` begins with, written once."""
    from lib.files import ROOT
    from tests import scratch

    root = tmp_path_factory.mktemp("template") / "checkout"
    for name in ("lib/__init__.py", "lib/files.py", "Snakefile"):
        (root / name).parent.mkdir(exist_ok=True, parents=True)
        # with its time, by which Python knows what is compiled
        shutil.copy2(ROOT / name, root / name)
    shutil.copytree(ROOT / "lib/runs", root / "lib/runs", ignore=shutil.ignore_patterns("*.pyc.*"))
    notebooks = root / "notebooks"
    train = (scratch.TRAIN_CODE, scratch.TRAIN_END)
    scratch.write_notebook(
        notebooks / "base.ipynb", scratch.BASE, f"init = 'none'\n{train[0]}", train[1]
    )
    scratch.write_notebook(notebooks / "train.ipynb", scratch.TRAIN, *train)
    scratch.write_notebook(notebooks / "study.ipynb", scratch.STUDY, scratch.STUDY_CODE)
    scratch.Checkout(root).declare()
    return root


@pytest.fixture
def checkout(template: Path, tmp_path: Path):
    """A scratch copy of the runner with three notebooks of its own (tests/scratch.py)."""
    from tests import scratch

    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return scratch.Checkout(tmp_path)
