"""Is one method better than another? Two methods side by side, from samples that exist already.

`compare` reads what notebook 15 has sampled from both, here (data/runs) or published
(data/reference), and gives each number of both with its 95% interval, and their paired difference.
It trains and samples nothing, and a method needs no row in data/methods.csv. `told` says in words
what the table shows.

A method that was sampled here is compared by its samples from here alone, since a run of yours and
a published one may have one name and have been trained for different things."""

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lib.files import REFERENCE, ROOT, RUNS, nearest, shown
from lib.study import intervals, judging, metrics, restarts, words
from lib.study.restarts import GAIN, STARTED

ONCE = "solved with one sample"
NONE = "without an answer"
TOKENS = "tokens per sample"
EQUAL = "solved for equal tokens"
RESTARTED = "its start, restarted for as many tokens"
BEYOND = "one sample minus that"
# The metrics keep the names of the studies until their intervals are computed, as a method of few
# runs borrows its spread by the name of the metric
NAMES = {
    "pass@1": ONCE,
    "missing": NONE,
    "tokens": TOKENS,
    intervals.EQUAL: EQUAL,
    STARTED: RESTARTED,
    GAIN: BEYOND,
    "precision": "its own check is right, if it says yes",
    "never yes": "problems where it never says yes",
}
# of an evaluation: two methods are compared as if these were the same
SAMPLED = ("limit", "temperature", "top_p", "top_k", "max_tokens", "engine")
DRAWN = "samples of a problem"
BORROWED = "With so few runs, some intervals use how much the runs of other policies differ."


class CompareError(ValueError):
    """Two methods that cannot be compared, and what to do about it."""


@dataclass(frozen=True)
class Comparison:
    """table: a row per number, with the estimate, low and high of each method ("a", "b") and of the
    difference a - b, and how many problems and runs it rests on. runs: the runs of each, in words.
    notes: what a reader must know, such as that two evaluations differ. budget: the tokens of a
    problem at equal tokens."""

    a: str
    b: str
    set: str
    table: pd.DataFrame
    runs: str
    notes: list[str]
    budget: float


def compare(
    a: str,
    b: str,
    profile: str = "cpu",
    problems: str = "heldout_1000",
    published: bool = False,
) -> Comparison:
    """Compares the methods a and b, such as "rloo/brief" and "rloo/sparse", on the problems of one
    set that both were asked.

    Each method's samples are those of the runs `sample/rloo_brief`: the ones of this machine if
    there are some, and else the published ones. published: the published ones alone. At equal
    tokens: solved by as many samples as can be drawn for the tokens that sixteen samples of the
    shortest of both methods and their starts cost. Raises CompareError if a method has no samples
    on the set, or if both were asked no common problem."""
    if a == b:
        raise CompareError(f"{a} is compared with itself: name two methods")
    roots = [REFERENCE / profile] if published else [RUNS / profile, REFERENCE / profile]
    found = {}
    for method in (a, b):
        found[method] = evaluations(method, roots, problems)
        if not found[method]:
            raise CompareError(f"{method} has no samples on {problems}{_remedy(method, roots)}")
    starts = {method: start_of(runs) for method, runs in found.items()}
    for start in {*starts.values()} - {"", a, b}:
        found[start] = evaluations(start, roots, problems)
    everything = [folder for runs in found.values() for folder in runs]
    judged = judging.samples(everything, problems, verdicts=("answer", "check"))
    judged = _on_common_problems(judged, a, b)
    table, budget = scores(judged, starts)
    table = _table(table, a, b)
    runs = f"{ran(found[a])} of {a}, {ran(found[b])} of {b}"
    notes = differently(found[a], found[b], problems)
    notes += few(found[a], found[b], a, b)
    if table["borrowed"].eq(True).any():
        notes.append(BORROWED)
    return Comparison(a, b, problems, table, runs, notes, budget)


def _on_common_problems(judged: pd.DataFrame, a: str, b: str) -> pd.DataFrame:
    """The rows of the problems that both methods were asked. Raises CompareError if there are
    none."""
    asked = [set(judged.loc[judged["method"] == method, "problem"]) for method in (a, b)]
    common = set.intersection(*asked)
    if not common:
        raise CompareError(f"{a} and {b} share no problem: sample both with the same limit")
    return judged[judged["problem"].isin(common)]


def scores(judged: pd.DataFrame, starts: dict[str, str]) -> tuple[pd.DataFrame, float]:
    """All numbers of the comparison, one row per method, seed, set and problem, and the tokens of a
    problem at equal tokens."""
    counts = metrics.counts(judged)
    tokens = metrics.mean_tokens(judged)
    most = int(counts["n"].min())
    budget = most * float(tokens.min())
    table = metrics.problem_scores(counts, (1, most), mean_to=())
    table = table.join(metrics.text_scores(judged)[["missing", "tokens"]])
    table[intervals.EQUAL] = metrics.solved_with(counts, budget / tokens)
    tallies = restarts.tallies(judged)
    table = table.join(restarts.against_start(tallies, starts=starts))
    return table.join(restarts.quality(tallies)[[*restarts.CHECKED]]), budget


def named(metric: str) -> str:
    """What the table calls a metric of the studies."""
    if metric in NAMES:
        return NAMES[metric]
    return several(int(metric.removeprefix("pass@")))


def several(number: int) -> str:
    """The name of pass@k for all samples of a problem."""
    return f"solved with {number} samples"


def evaluations(method: str, roots: list[Path], problems: str) -> list[Path]:
    """The folders of a method's finished samples on a set, one per seed, from the first of `roots`
    that has some. Copies of published runs do not count as made here."""
    samples = sampled_as(method)
    for root in roots:
        folders = []
        for file in sorted((root / samples).glob("*/run.json")):
            record = json.loads(file.read_text())
            finished = record.get("status", "finished") == "finished"
            is_copy = not root.is_relative_to(REFERENCE) and _is_published(file, record)
            if finished and not is_copy and problems in record["parameters"].get("sets", ()):
                folders.append(file.parent)
        if folders:
            return folders
    return []


def sampled_as(method: str) -> str:
    """The name of the runs that sample from a method's policies."""
    return f"sample/{method.replace('/', '_')}"


def _is_published(file: Path, record: dict) -> bool:
    """Whether a run of this machine, whose record is profile/kind/name/seed/run.json, is the
    published one."""
    twin = REFERENCE.joinpath(*file.parts[-5:])
    return twin.is_file() and json.loads(twin.read_text()).get("id") == record.get("id")


def _remedy(method: str, roots: list[Path]) -> str:
    """What to do about a method without samples, as the end of a message."""
    trained = [root / method for root in roots if (root / method).is_dir()]
    if method.count("/") == 1 and trained and not method.startswith("sample/"):
        return (
            f": `make study GROUP={sampled_as(method)}` draws them, if the entry of {method} in "
            "papermill_runs.yaml has `evaluate: {}`"
        )
    methods = set()
    for root in roots:
        for file in root.glob("sample/*/*/run.json"):
            name = json.loads(file.read_text())["method"]
            if file.parts[-3] == sampled_as(name).partition("/")[2]:
                methods.add(name)
    return f". No run of this name is here or published{nearest(method, sorted(methods))}"


def start_of(runs: list[Path]) -> str:
    """The SFT policy from which a method's training began, by data/methods.csv or by the record of
    its training. "" if neither tells."""
    record = judging.record(runs[0])
    if listed := restarts.trained_from(record["method"]):
        return listed
    trained = ROOT / str(record["parameters"].get("policy", "")) / "run.json"
    if not trained.is_file():
        return ""
    init = str(json.loads(trained.read_text())["parameters"].get("init", ""))
    parts = Path(init).parts  # data/runs/cpu/sft/free/0
    start = "/".join(parts[-3:-1]) if len(parts) > 3 else ""
    return restarts.trained_from(start) or start


def differently(one: list[Path], other: list[Path], problems: str) -> list[str]:
    """A sentence for each setting in which two evaluations differ, of any of their runs."""
    first = [settings(folder, problems) for folder in one]
    second = [settings(folder, problems) for folder in other]
    sentences = []
    for name in (*SAMPLED, DRAWN):
        mine = _values(first, name)
        theirs = _values(second, name)
        if mine != theirs or len(mine) > 1:
            sentences.append(
                f"They were evaluated differently: {name} is {' or '.join(mine)} and "
                f"{' or '.join(theirs)}. The difference may come from that."
            )
    return sentences


def settings(folder: Path, problems: str) -> dict[str, object]:
    """How a run's samples of a set were drawn."""
    parameters = judging.record(folder)["parameters"]
    drawn = {name: parameters.get(name) for name in SAMPLED}
    return drawn | {DRAWN: parameters["sets"][problems]}


def _values(evaluated: list[dict[str, object]], name: str) -> list[str]:
    """The values that a setting has in several evaluations, each once."""
    return sorted({str(each[name]) for each in evaluated})


def ran(runs: list[Path]) -> str:
    """How many runs there are, and where they were made: "5 published runs", "1 run made here"."""
    if runs[0].is_relative_to(REFERENCE):
        return counted(len(runs), "published run")
    return f"{counted(len(runs), 'run')} made here"


def few(one: list[Path], other: list[Path], a: str, b: str) -> list[str]:
    """What to think of a method with one run."""
    sentences = []
    for method, runs in ((a, one), (b, other)):
        if len(runs) == 1:
            sentences.append(
                f"{method} has one run, so nobody knows how much its runs differ. "
                "Train two more before you decide."
            )
    return sentences


def _table(scores: pd.DataFrame, a: str, b: str) -> pd.DataFrame:
    """Both methods and their difference, a row per number."""
    columns = ["estimate", "low", "high"]
    levels = intervals.estimates(scores)
    gaps = intervals.differences(scores, [(a, b)])
    rows = []
    for metric in scores.columns:
        row = {"number": named(metric)}
        for side, method in (("a", a), ("b", b)):
            level = words.pick(levels, method=method, metric=metric)
            if level is not None:
                row |= {f"{side} {name}": level[name] for name in columns}
        # two starts restarted for different tokens say nothing about each other
        gap = words.pick(gaps, metric=metric)
        if gap is not None and metric != STARTED:
            row |= {f"difference {name}": gap[name] for name in columns}
            row |= {"problems": gap["n_problems"], "runs": gap["runs"]}
            row |= {"borrowed": gap["borrowed"]}
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
    lines += ["", f"{table.iloc[0]['problems']:,.0f} problems; {found.runs}, paired by seed."]
    lines += [_verdict(found), *_beyond(found), *found.notes]
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
        f"For equal tokens ({found.budget:,.0f} per problem) {found.a} solves more.",
        f"For equal tokens ({found.budget:,.0f} per problem) {found.b} solves more.",
        f"For equal tokens ({found.budget:,.0f} per problem) no difference is shown.",
    )
    return f"{better} {equal}"


def _beyond(found: Comparison) -> list[str]:
    """For each method, whether training did more than restarting its start."""
    row = words.pick(found.table, number=BEYOND)
    sentences = []
    for side, method in (("a", found.a), ("b", found.b)):
        ends = None if row is None else row.get(f"{side} low")
        if row is None or ends is None or pd.isna(ends):
            continue
        gain = {end: row[f"{side} {end}"] for end in ("estimate", "low", "high")}
        gain = pd.Series(gain | {"baseline": ""})
        sentences.append(
            f"One sample of {method} minus its start, restarted for as many tokens: "
            f"{words.estimate(gain, '')}."
        )
    return sentences


def _gap_of(found: Comparison, number: str) -> pd.Series | None:
    """The difference in one number, with the names that `words` reads."""
    row = words.pick(found.table, number=number)
    return None if row is None else row.rename(lambda name: str(name).removeprefix("difference "))


def save(found: Comparison, file: Path) -> str:
    """Writes the table as CSV, and says where."""
    found.table.assign(a=found.a, b=found.b, set=found.set).to_csv(file, index=False)
    return f"wrote {shown(file)}"
