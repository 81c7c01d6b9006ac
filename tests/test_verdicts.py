"""The verdicts that are published with the samples: for each kind of file, thirty rows of up to forty files are judged
again.

`python -m tests.test_verdicts` makes the verdicts again after a change of the judge. For samples that were published
since then, it takes the verdicts that `make figures` has kept.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lib.files import REFERENCE, progress, read_table, write_table
from lib.study import judging

SAMPLES = ("generations.parquet", "trajectories.parquet")
FILES = sorted(REFERENCE.glob("*/*/*/*/verdicts/*.parquet"))
REMEDY = "`make figures`, then `.venv/bin/python -m tests.test_verdicts`"


def judged(path, rows: int | None = None, seed=0):
    """A published table of verdicts, and the same judged again, of `rows` of its rows drawn at random."""
    folder = path.parent.parent
    name, look, _ = path.stem.rsplit("-", 2)
    file = next(folder / name for name in SAMPLES if (folder / name).exists())
    samples = read_table(file)
    samples = samples[samples["set"] == name] if "set" in samples else samples
    kept = read_table(path).set_axis(samples.index)
    if rows is not None and rows < len(samples):
        samples = samples.sample(rows, random_state=seed)
    style = judging.record(folder)["parameters"].get("prompt_style", "free")
    return kept, judging.judge(samples, style, look)[judging.LOOKS[look][0]]


def contents() -> dict[str, Path]:
    """What is published and judged, by the hash under which its verdicts are kept."""
    paths = (path for name in SAMPLES for path in REFERENCE.glob(f"*/*/*/*/{name}"))
    return {judging.content(path): path for path in paths}


def refresh() -> None:
    """Judge all that is published anew, if the code has changed; add what `make figures` has judged since."""
    published, code = contents(), judging._code()
    changed = judging.JUDGED_BY.read_text().strip() != code
    for path in progress(FILES, len(FILES), "judging"):
        if not any(content.startswith(path.stem.rsplit("-", 1)[1]) for content in published):
            path.unlink()  # of samples that were published anew
            continue
        if changed and not (again := judged(path)[1]).equals(read_table(path).set_axis(again.index)):
            write_table(again, path)
    for kept in sorted(judging.CACHE.glob(f"*-{code}-*.parquet")):
        content, name, _, _, look = kept.stem.split("-")
        if content in published:
            target = judging.published(published[content], content, name, look)
            target.parent.mkdir(exist_ok=True)
            write_table(read_table(kept), target)
    judging.JUDGED_BY.write_text(f"{code}\n")


def test_the_published_verdicts_are_those_of_this_code():
    assert judging.JUDGED_BY.read_text().strip() == judging._code(), REMEDY


def test_they_are_of_what_is_published_and_nearly_all_of_it():
    """Some samples are read by no study, but for a record's line."""
    named = {(path.parent.parent, path.stem.rsplit("-", 1)[1]) for path in FILES}
    there = {(path.parent, content[:12]) for content, path in contents().items() if path.parts[-4] != "pairs"}
    assert named <= there and len(named) > 0.9 * len(there), REMEDY


@pytest.mark.parametrize("look", judging.LOOKS)
def test_they_are_what_the_judge_says(look):
    rng = np.random.default_rng(0)
    paths = [path for path in FILES if path.stem.rsplit("-", 2)[1] == look]
    assert len(paths) >= 20
    for path in rng.permutation(paths)[:40]:
        kept, again = judged(path, 30)
        pd.testing.assert_frame_equal(kept.loc[again.index], again)


if __name__ == "__main__":
    refresh()
