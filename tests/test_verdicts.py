"""The verdicts that are published with the samples: for each kind of verdict, thirty rows of up to forty files are
judged again.

`python -m tests.test_verdicts` makes the verdicts again after a change of the judge. For samples that were published
since then, it takes the verdicts that `make figures` has kept.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lib.files import REFERENCE, atomic, progress, read_table
from lib.study import judging

SAMPLES = ("generations.parquet", "trajectories.parquet")
FILES = sorted(path for name in SAMPLES for path in REFERENCE.glob(f"*/*/*/*/{name}") if path.parts[-4] != "pairs")
REMEDY = "`make figures`, then `.venv/bin/python -m tests.test_verdicts`"


def kept(path: Path, samples: pd.DataFrame) -> Iterator[tuple[str, str, pd.Index]]:
    """What the published verdicts on a file of samples hold: problem set, look, and the rows of the set."""
    if (path.parent / judging.VERDICTS).exists():
        nulls = pq.read_table(path.parent / judging.VERDICTS)
        for name, rows in samples.groupby("set", sort=False) if "set" in samples else [("all", samples)]:
            for look, (columns, _) in judging.LOOKS.items():
                if {*columns} <= {*nulls.column_names} and not nulls[columns[-1]].take(
                    rows.index.to_numpy()
                ).null_count:
                    yield str(name), look, rows.index


def judged(path: Path, samples: pd.DataFrame, look: str) -> pd.DataFrame:
    style = judging.record(path.parent)["parameters"].get("prompt_style", "free")
    return judging.judge(samples, style, look)[judging.LOOKS[look][0]]


def write(path: Path, size: int, parts: list[tuple[pd.Index, pd.DataFrame]]) -> None:
    """Write verdicts on parts of a file of `size` rows beside it, with null in all other places."""
    cells: dict[str, np.ndarray] = {}
    for rows, verdicts in parts:
        for name in verdicts:
            column = cells.setdefault(name, np.full(size, None, dtype=object))
            column[rows] = verdicts[name].to_numpy(dtype=object)
    table = pa.table({name: pa.array(column.tolist(), from_pandas=False) for name, column in cells.items()})
    table = table.replace_schema_metadata({"content": judging.content(path)})
    file = path.parent / judging.VERDICTS
    old = pq.read_table(file) if file.exists() else table[:0]
    if {*old.column_names} != {*table.column_names} or not old.select(table.column_names).equals(table, True):
        with atomic(file) as temporary:
            pq.write_table(table, temporary, compression="zstd", compression_level=19)


def refresh() -> None:
    """Judge all that is published anew, if the code has changed; add what `make figures` has judged since."""
    code = judging._code()
    changed = judging.JUDGED_BY.read_text().strip() != code
    for path in progress(FILES, len(FILES), "judging"):
        content = judging.content(path)
        new = {tuple(file.stem.split("-")[1::3]): file for file in judging.CACHE.glob(f"{content}-*-{code}-*.parquet")}
        file = path.parent / judging.VERDICTS
        stale = file.exists() and pq.read_schema(file).metadata.get(b"content") != content.encode()
        if not (new or changed or stale):
            continue
        samples = read_table(path)
        held = [] if stale else [*kept(path, samples)]
        parts = []
        for name, look, rows in held:
            if (name, look) not in new:
                columns = judging.LOOKS[look][0]
                old = None if changed else judging.published(path, content, rows, columns)
                parts.append((rows, judged(path, samples.loc[rows], look) if old is None else old))
        for (name, _), cached in new.items():
            rows = samples.index[samples["set"] == name] if "set" in samples else samples.index
            parts.append((rows, read_table(cached)))
        write(path, len(samples), parts)
    judging.JUDGED_BY.write_text(f"{code}\n")


def test_the_published_verdicts_are_those_of_this_code():
    assert judging.JUDGED_BY.read_text().strip() == judging._code(), REMEDY


def test_they_are_of_what_is_published_and_nearly_all_of_it():
    """Some samples are read by no study, but for a record's line."""
    judged = [path for path in FILES if (path.parent / judging.VERDICTS).exists()]
    for path in judged:
        named = pq.read_schema(path.parent / judging.VERDICTS).metadata[b"content"].decode()
        assert named == judging.content(path), REMEDY
    assert len(judged) > 0.9 * len(FILES), REMEDY
    folders = {path.parent for path in FILES}
    assert {path.parent for path in REFERENCE.glob(f"*/*/*/*/{judging.VERDICTS}")} <= folders


@pytest.mark.parametrize("look", judging.LOOKS)
def test_they_are_what_the_judge_says(look):
    rng = np.random.default_rng(0)
    column = judging.LOOKS[look][0][0]
    files = [path.parent / judging.VERDICTS for path in FILES]
    paths = [path for path, file in zip(FILES, files, strict=True) if file.exists()]
    paths = [path for path in paths if column in pq.read_schema(path.parent / judging.VERDICTS).names]
    assert len(paths) >= 20
    for path in rng.permutation(paths)[:40]:
        samples = read_table(path)
        for _, one, rows in kept(path, samples):
            if one == look:
                some = pd.Index(rng.choice(rows, min(30, len(rows)), replace=False))
                published = judging.published(path, judging.content(path), some, judging.LOOKS[look][0])
                again = judged(path, samples.loc[some], look)
                pd.testing.assert_frame_equal(published.set_axis(some), again)


if __name__ == "__main__":
    refresh()
