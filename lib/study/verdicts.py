"""Writes the verdicts that are published with the samples (verdicts.parquet, judged_by.txt).

`python -m lib.runs verdicts` makes them again after a change of the judge. For samples that were
published since then, it takes the verdicts that `make figures` has kept.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lib.files import REFERENCE, atomic, progress, read_table, sha256
from lib.study import judging

SAMPLES = ("generations.parquet", "trajectories.parquet")


def files() -> list[Path]:
    """All published files of samples, apart from the pairs that policies learn from."""
    found = [path for name in SAMPLES for path in REFERENCE.glob(f"*/*/*/*/{name}")]
    return sorted(path for path in found if path.parts[-4] != "pairs")


def kept(path: Path, samples: pd.DataFrame) -> Iterator[tuple[str, str, pd.Index]]:
    """What the published verdicts on a file of samples hold: problem set, kind, and the rows of the
    set."""
    file = path.parent / judging.VERDICTS_FILE
    if not file.exists():
        return
    verdicts = pq.read_table(file)
    sets = samples.groupby("set", sort=False) if "set" in samples else [("all", samples)]
    for name, rows in sets:
        for kind, (columns, _) in judging.VERDICT_KINDS.items():
            if {*columns} <= {*verdicts.column_names}:
                last = verdicts[columns[-1]].take(rows.index.to_numpy())
                if not last.null_count:
                    yield str(name), kind, rows.index


def judged(path: Path, samples: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The verdicts of one kind on `samples`, which are rows of the file `path`."""
    style = judging.record(path.parent)["parameters"].get("prompt_style", "free")
    return judging.judge(samples, style, kind)[judging.VERDICT_KINDS[kind].columns]


def write(path: Path, size: int, parts: list[tuple[pd.Index, pd.DataFrame]]) -> None:
    """Writes verdicts on parts of a file of `size` rows beside it, with null in all other
    places."""
    cells: dict[str, np.ndarray] = {}
    for rows, verdicts in parts:
        for name in verdicts:
            column = cells.setdefault(str(name), np.full(size, None, dtype=object))
            column[rows] = verdicts[name].to_numpy(dtype=object)
    arrays = {name: pa.array(column.tolist(), from_pandas=False) for name, column in cells.items()}
    table = pa.table(arrays).replace_schema_metadata({"content": judging.content(path)})
    file = path.parent / judging.VERDICTS_FILE
    old = pq.read_table(file) if file.exists() else table[:0]
    if {*old.column_names} == {*table.column_names}:
        table = table.select(old.column_names)  # what is equal gives an equal file, nan or not
    if not old.equals(table, True):
        with atomic(file) as temporary:
            pq.write_table(table, temporary, compression="zstd", compression_level=19)


def refresh() -> None:
    """Judges all that is published anew, if the code has changed; adds what `make figures` has
    judged since."""
    code = judging.code()
    changed = judging.JUDGED_BY.read_text().split("\n")[0] != code
    paths = files()
    for path in progress(paths, len(paths), "judging"):
        _refresh_one(path, code, changed)
    write_hashes(code)


def write_hashes(code: str) -> None:
    """Writes judged_by.txt: the hash of the code that judges, and the sha256 of each file of
    verdicts. `sha256sum -c` in data/reference checks all lines but the first."""
    found = sorted(REFERENCE.glob(f"*/*/*/*/{judging.VERDICTS_FILE}"))
    lines = [f"{sha256(file)}  {file.relative_to(REFERENCE).as_posix()}" for file in found]
    with atomic(judging.JUDGED_BY) as temporary:
        temporary.write_text("\n".join([code, *lines]) + "\n")


def _refresh_one(path: Path, code: str, changed: bool) -> None:
    content = judging.content(path)
    cached = judging.CACHE.glob(f"{content}-*-{code}-*.parquet")
    new = {tuple(file.stem.split("-")[1::3]): file for file in cached}
    file = path.parent / judging.VERDICTS_FILE
    of_others = False
    if file.exists():
        of_others = pq.read_schema(file).metadata.get(b"content") != content.encode()
    if not (new or changed or of_others):
        return
    samples = read_table(path)
    parts = []
    for name, kind, rows in [] if of_others else kept(path, samples):
        if (name, kind) in new:
            continue
        columns = judging.VERDICT_KINDS[kind].columns
        found = None if changed else judging.published(path, content, rows, columns)
        if found is None:
            found = judged(path, samples.loc[rows], kind)
        parts.append((rows, found))
    for (name, kind), cache_file in new.items():
        rows = samples.index[samples["set"] == name] if "set" in samples else samples.index
        kept_verdicts = judging.cached(cache_file)
        if kept_verdicts is None:  # it is no longer what was written
            kept_verdicts = judged(path, samples.loc[rows], kind)
        parts.append((rows, kept_verdicts))
    write(path, len(samples), parts)
