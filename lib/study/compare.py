"""Is one method better than another? Two methods side by side, from samples that exist already.

`compare` reads what notebook 15 has sampled from both, here (data/runs) or published
(data/reference), and gives each number of both with its 95% interval, and their paired difference.
It trains and samples nothing, and a method needs no row in data/methods.csv. `told` says in words
what the table shows."""

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lib.files import REFERENCE, ROOT, RUNS, nearest, shown
from lib.study import intervals, judging, metrics, restarts, systems, words
from lib.study.restarts import GAIN, STARTED

ONCE = "solved with one sample"
NONE = "without an answer"
TOKENS = "tokens per sample"
EQUAL = "solved for equal tokens"
RESTARTED = "its start, restarted for as many tokens"
BEYOND = "one sample minus that"
# of an evaluation: two methods are compared as if these were the same
SAMPLED = ("limit", "temperature", "top_p", "top_k", "max_tokens", "engine")


class CompareError(ValueError):
    """Two methods that cannot be compared, and what to do about it."""


@dataclass(frozen=True)
class Comparison:
    """table: a row per number, with the estimate, low and high of each method ("a", "b") and of the
    difference a - b, and how many problems and runs it rests on. notes: what a reader must know,
    such as that two evaluations differ. budget: the tokens of a problem at equal tokens."""

    a: str
    b: str
    set: str
    table: pd.DataFrame
    notes: list[str]
    budget: float


def compare(a: str, b: str, profile: str = "cpu", problems: str = "heldout_1000") -> Comparison:
    """Compares the methods a and b, such as "rloo/brief" and "rloo/sparse", on one set of problems.

    Each method's samples are those of the runs `sample/rloo_brief`, the ones of this machine before
    the published ones. At equal tokens: solved by as many samples as can be drawn for the tokens
    that sixteen samples of the shortest of both methods and their starts cost. Raises CompareError
    if a method has no samples on the set."""
    if a == b:
        raise CompareError(f"{a} is compared with itself: name two methods")
    found = {method: evaluations(method, profile, problems) for method in (a, b)}
    starts = {method: start_of(runs, profile) for method, runs in found.items()}
    for start in {*starts.values()} - {"", a, b}:
        found[start] = evaluations(start, profile, problems, needed=False)
    everything = [folder for runs in found.values() for folder in runs]
    judged = judging.samples(everything, problems, looks=("answer", "check"))
    counts = metrics.counts(judged)
    tokens = metrics.mean_tokens(judged)
    most = int(counts["n"].min())
    budget = most * float(tokens.min())
    scores = metrics.problem_scores(counts, (1, most), mean_to=())
    scores = scores.rename(columns={"pass@1": ONCE, f"pass@{most}": several(most)})
    texts = metrics.text_scores(judged).rename(columns={"missing": NONE, "tokens": TOKENS})
    scores = scores.join(texts[[NONE, TOKENS]])
    scores[EQUAL] = metrics.solved_with(counts, budget / tokens)
    tallies = restarts.tallies(judged)
    started = restarts.against_start(tallies, starts=starts)
    scores = scores.join(started.rename(columns={STARTED: RESTARTED, GAIN: BEYOND}))
    notes = differently(found[a], found[b]) + few(found[a], found[b], a, b)
    return Comparison(a, b, problems, _table(scores, a, b), notes, budget)


def several(number: int) -> str:
    """The name of pass@k for all samples of a problem."""
    return f"solved with {number} samples"


def evaluations(method: str, profile: str, problems: str, needed: bool = True) -> list[Path]:
    """The folders of a method's samples on a set, one per seed: those of this machine before the
    published ones. Raises CompareError if there are none and they are needed."""
    name = f"sample/{method.replace('/', '_')}"
    by_seed: dict[str, Path] = {}
    for root in (REFERENCE / profile, RUNS / profile):
        for file in sorted((root / name).glob("*/run.json")):
            record = json.loads(file.read_text())
            finished = record.get("status", "finished") == "finished"
            if finished and problems in record["parameters"].get("sets", ()):
                by_seed[file.parent.name] = file.parent
    if needed and not by_seed:
        raise CompareError(f"{method} has no samples on {problems}. {_remedy(method, profile)}")
    return [by_seed[seed] for seed in sorted(by_seed)]


def _remedy(method: str, profile: str) -> str:
    """What to do about a method without samples."""
    known = []
    for root in (REFERENCE / profile, RUNS / profile):
        known += [f"{path.parent.name}/{path.name}" for path in root.glob("*/*") if path.is_dir()]
    evaluation = f"sample/{method.replace('/', '_')}"
    if method in known:
        return (
            f"Give its entry in papermill_runs.yaml `evaluate: {{}}`, then "
            f"`make study GROUP={evaluation}` draws them"
        )
    methods = sorted(name for name in known if not name.startswith("sample/"))
    return f"No run of this name is here or published{nearest(method, methods)}"


def start_of(runs: list[Path], profile: str) -> str:
    """The policy from which a method's training began, by the record of its training; for a
    published method by data/methods.csv. "" if neither tells."""
    record = judging.record(runs[0])
    listed = systems.start_of(record["method"])
    if listed:
        return restarts.begun_from(record["method"], pd.Index([listed])) or listed
    trained = ROOT / str(record["parameters"].get("policy", "")) / "run.json"
    if not trained.is_file():
        return ""
    started = str(json.loads(trained.read_text())["parameters"].get("init", ""))
    parts = Path(started).parts
    return "/".join(parts[-3:-1]) if len(parts) >= 3 else ""


def differently(one: list[Path], other: list[Path]) -> list[str]:
    """A sentence for each setting in which two evaluations differ."""
    first = judging.record(one[0])["parameters"]
    second = judging.record(other[0])["parameters"]
    sentences = []
    for name in SAMPLED:
        if first.get(name) != second.get(name):
            sentences.append(
                f"They were evaluated differently: {name} is {first.get(name)} and "
                f"{second.get(name)}. The difference may come from that."
            )
    return sentences


def few(one: list[Path], other: list[Path], a: str, b: str) -> list[str]:
    """What to think of a method with one run."""
    sentences = []
    for method, runs in ((a, one), (b, other)):
        if len(runs) == 1:
            sentences.append(
                f"{method} has one run, and the intervals do not know how runs differ. Nothing is "
                "answered yet: train two more."
            )
    return sentences


def _table(scores: pd.DataFrame, a: str, b: str) -> pd.DataFrame:
    """Both methods and their difference, a row per number."""
    columns = ["estimate", "low", "high"]
    levels = intervals.estimates(scores)
    gaps = intervals.differences(scores, [(a, b)])
    rows = []
    for metric in scores.columns:
        row = {"number": metric}
        for side, method in (("a", a), ("b", b)):
            level = words.pick(levels, method=method, metric=metric)
            if level is not None:
                row |= {f"{side} {name}": level[name] for name in columns}
        # two starts restarted for different tokens say nothing about each other
        gap = words.pick(gaps, metric=metric)
        if gap is not None and metric != RESTARTED:
            row |= {f"difference {name}": gap[name] for name in columns}
            row |= {"problems": gap["n_problems"], "runs": gap["runs"]}
        rows.append(row)
    return pd.DataFrame(rows)


def told(found: Comparison) -> str:
    """The comparison in words: its table, and a sentence for each number that differs."""
    table = found.table.set_index("number")
    lines = [f"{found.a} against {found.b} on {found.set}", ""]
    width = max(map(len, table.index))
    heads = (found.a, found.b)
    sizes = [max(len(head), 5) for head in heads]
    head = "  ".join(f"{name:>{size}}" for name, size in zip(heads, sizes, strict=True))
    lines.append(f"{'':{width}}  {head}  difference [95% interval]")
    for number, row in table.iterrows():
        scale, digits = _unit(str(number))
        ends = (row.get("a estimate"), row.get("b estimate"))
        cells = [_cell(value, scale, digits) for value in ends]
        shown_cells = "  ".join(f"{c:>{size}}" for c, size in zip(cells, sizes, strict=True))
        lines.append(f"{number!s:{width}}  {shown_cells}  {_gap(row, scale, digits)}")
    first = table.iloc[0]
    runs = counted(first["runs"], "run")
    lines += ["", f"{first['problems']:,.0f} problems, at least {runs} of each, paired by seed."]
    lines += [_verdict(found), *found.notes]
    return "\n".join(line.rstrip() for line in lines)


def counted(number: float, what: str) -> str:
    """A number of things: "1 run", "5 runs"."""
    return f"{number:.0f} {what}{'' if number == 1 else 's'}"


def _unit(number: str) -> tuple[float, int]:
    """The factor and the digits of a number: percent, or tokens."""
    return (1.0, 0) if number == TOKENS else (100.0, 1)


def _cell(value: float | None, scale: float, digits: int) -> str:
    """One number, "" if there is none."""
    return "" if value is None or pd.isna(value) else f"{scale * value:.{digits}f}"


def _gap(row: pd.Series, scale: float, digits: int) -> str:
    """A difference with its interval, "" if there is none."""
    ends = [row.get(f"difference {name}") for name in ("estimate", "low", "high")]
    if any(end is None or pd.isna(end) for end in ends):
        return ""
    gap = dict(zip(("estimate", "low", "high"), ends, strict=True))
    return words.estimate(pd.Series(gap | {"baseline": ""}), "", scale, digits)


def _verdict(found: Comparison) -> str:
    """What the numbers say, in one or two sentences."""
    better = words.compared(
        _gap_of(found, ONCE),
        f"{found.a} solves more with one sample.",
        f"{found.b} solves more with one sample.",
        "With one sample no difference is shown.",
    )
    equal = words.compared(
        _gap_of(found, EQUAL),
        f"For equal tokens ({found.budget:,.0f} a problem) {found.a} solves more.",
        f"For equal tokens ({found.budget:,.0f} a problem) {found.b} solves more.",
        f"For equal tokens ({found.budget:,.0f} a problem) no difference is shown.",
    )
    return f"{better} {equal}"


def _gap_of(found: Comparison, number: str) -> pd.Series | None:
    """The difference in one number, with the names that `words` reads."""
    row = words.pick(found.table, number=number)
    return None if row is None else row.rename(lambda name: str(name).removeprefix("difference "))


def save(found: Comparison, file: Path) -> str:
    """Writes the table as CSV, and says where."""
    found.table.assign(a=found.a, b=found.b, set=found.set).to_csv(file, index=False)
    return f"wrote {shown(file)}"
