"""The verdicts that are published with the samples: for each kind of verdict, thirty rows of up to
forty files are judged again."""

import shutil

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from lib.files import REFERENCE, read_table, sha256
from lib.study import judging
from lib.study.verdicts import files, judged, kept, write

FILES = files()
REMEDY = "`make figures`, then `.venv/bin/python -m lib.runs verdicts`"


def test_the_published_verdicts_are_those_of_this_code():
    assert judging.JUDGED_BY.read_text().split("\n")[0] == judging.code(), REMEDY


def test_each_published_file_of_verdicts_is_the_one_that_was_written():
    """A flipped bit in one of them would change published numbers. `judging` compares each file
    that it reads."""
    lines = judging.JUDGED_BY.read_text().splitlines()[1:]
    named = {}
    for line in lines:
        written, name = line.split("  ")
        named[name] = written
    found = {
        path.relative_to(REFERENCE).as_posix(): sha256(path)
        for path in REFERENCE.glob(f"*/*/*/*/{judging.VERDICTS_FILE}")
    }
    assert named == found, REMEDY


def test_they_are_of_what_is_published_and_nearly_all_of_it():
    """Some samples are read by no study, but for a record's line."""
    judged = [path for path in FILES if (path.parent / judging.VERDICTS_FILE).exists()]
    for path in judged:
        named = pq.read_schema(path.parent / judging.VERDICTS_FILE).metadata[b"content"].decode()
        assert named == judging.content(path), REMEDY
    assert len(judged) > 0.9 * len(FILES), REMEDY
    folders = {path.parent for path in FILES}
    assert {path.parent for path in REFERENCE.glob(f"*/*/*/*/{judging.VERDICTS_FILE}")} <= folders


@pytest.mark.parametrize("kind", judging.VERDICT_KINDS)
def test_they_are_what_the_judge_says(kind):
    rng = np.random.default_rng(0)
    column = judging.VERDICT_KINDS[kind].columns[0]
    files = [path.parent / judging.VERDICTS_FILE for path in FILES]
    paths = [path for path, file in zip(FILES, files, strict=True) if file.exists()]
    paths = [
        path
        for path in paths
        if column in pq.read_schema(path.parent / judging.VERDICTS_FILE).names
    ]
    assert len(paths) >= 20
    for path in rng.permutation(paths)[:40]:
        samples = read_table(path)
        for _, one, rows in kept(path, samples):
            if one == kind:
                some = pd.Index(rng.choice(rows, min(30, len(rows)), replace=False))
                published = judging.published(
                    path, judging.content(path), some, judging.VERDICT_KINDS[kind].columns
                )
                again = judged(path, samples.loc[some], kind)
                pd.testing.assert_frame_equal(published.set_axis(some), again)


def test_the_writer_writes_what_is_published(tmp_path):
    """The verdicts on a whole file, judged again and written without the published ones beside
    it."""
    path = min(
        (path for path in FILES if (path.parent / judging.VERDICTS_FILE).exists()),
        key=lambda path: path.stat().st_size,
    )
    for name in ("run.json", path.name):
        shutil.copyfile(path.parent / name, tmp_path / name)
    samples = read_table(path)
    parts = [(rows, judged(path, samples.loc[rows], kind)) for _, kind, rows in kept(path, samples)]
    write(tmp_path / path.name, len(samples), parts)
    assert pq.read_table(tmp_path / judging.VERDICTS_FILE).equals(
        pq.read_table(path.parent / judging.VERDICTS_FILE), True
    )
