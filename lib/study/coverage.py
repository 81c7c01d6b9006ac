"""What several notebooks of study `coverage` compute from the samples of its methods.

A sample costs tokens, so methods are compared for equal tokens as well as for equal samples: each
draws as many samples as the tokens of all samples of its start pay for. And where no verifier can
pick the right one of many samples, something else has to: the model's own likelihood, the length,
a vote, or the policy's own check (Wang et al. 2022, arXiv 2203.11171, vote).

Scores are tables with one row per problem, indexed by `metrics.KEYS`, for
`lib.study.intervals`."""

from collections.abc import Iterable
from itertools import pairwise

import pandas as pd

from lib.study import intervals, metrics, systems
from lib.study.metrics import KEYS, pass_at_k

KS = (1, 2, 4, 8, 16)
VOTE = "most frequent answer"


def within(judged: pd.DataFrame, limit: int) -> pd.DataFrame:
    """The samples as if each had been cut after `limit` tokens: what ends later gives no answer."""
    cut = judged["tokens"] > limit
    correct = judged["correct"].astype(bool) & ~cut
    status = judged["status"].where(~cut, "missing")
    tokens = judged["tokens"].clip(upper=limit)
    return judged.assign(correct=correct, status=status, tokens=tokens)


def paid_by(judged: pd.DataFrame, budget: float) -> pd.Series:
    """How many samples of each method so many tokens pay for on average, by method."""
    return budget / metrics.mean_tokens(judged)


def affordable(judged: pd.DataFrame, start: str, most: int = 16) -> pd.Series:
    """How many samples of each method the tokens of `most` samples of `start` pay for on average,
    by method: at least one, and at most `most`."""
    budget = most * metrics.mean_tokens(judged)[start]
    return paid_by(judged, budget).clip(1, most)


def at_equal_tokens(judged: pd.DataFrame, start: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What methods solve for the tokens of sixteen samples of `start`, on one set.

    First one row per method: tokens, the mean length of a sample; samples, how many they pay for;
    what is solved, and the difference from `start`, with their intervals. Then the differences
    alone, as `intervals.differences` gives them."""
    samples = affordable(judged, start)
    solved = metrics.solved_with(metrics.counts(judged), samples).to_frame("solved")
    pairs = [(method, start) for method in samples.index if method != start]
    gaps = intervals.differences(solved, pairs)
    tokens = metrics.mean_tokens(judged)
    table = pd.DataFrame({"tokens": tokens.round(1), "samples": samples.round(2)})
    columns = {"solved": intervals.estimates(solved), "difference": gaps}
    for name, rows in columns.items():
        bounds = rows.set_index("method")[["estimate", "low", "high"]]
        table = table.join(bounds.add_prefix(f"{name}, "))
    return table.rename_axis("method").reset_index(), gaps


def half_and_half(scores: pd.DataFrame, method: str, start: str) -> pd.DataFrame:
    """Scores of k samples of which half are the method's and half are those of `start`, as the
    system "<method> 8 + 8".

    With k independent samples of each, the chance of at least one solution is
    $1 - (1 - p_k)(1 - q_k)$, which is estimated without bias. scores: with columns pass@1, pass@2,
    ..., pass@16."""
    of_method = scores.xs(method, level="method")
    of_start = scores.xs(start, level="method")
    of_method, of_start = of_method.align(of_start, join="inner")
    table = {"pass@1": (of_method["pass@1"] + of_start["pass@1"]) / 2}
    for half, k in pairwise(KS):
        method_fails = 1 - of_method[f"pass@{half}"]
        start_fails = 1 - of_start[f"pass@{half}"]
        table[f"pass@{k}"] = 1 - method_fails * start_fails
    mixed = systems.variant(method, "8 + 8")
    return pd.concat({mixed: pd.DataFrame(table)}, names=["method"])


def scores(judged: pd.DataFrame, start: str, most=16) -> pd.DataFrame:
    """The columns that all claims of the study need: pass@k for k up to `most`, unanswered, and
    "solved at equal tokens", which is left out where `start` was not sampled."""
    counts = metrics.counts(judged)
    ks = [2**i for i in range(most.bit_length())]
    table = metrics.problem_scores(counts, ks, mean_to=())
    table["unanswered"] = metrics.text_scores(judged)["missing"]
    if start in counts.index.unique("method"):
        samples = affordable(judged, start, most)
        table[intervals.EQUAL] = metrics.solved_with(counts, samples)
    return table


def picked(judged: pd.DataFrame) -> pd.DataFrame:
    """By rule, whether the one closed sample that it picks of a problem's is right. A problem
    without a closed sample is not solved.

    judged: a table of `judging.samples` with the verdict "expression", and for the rule "likeliest
    that says yes" also "check". That rule takes the likeliest of all where no sample says yes."""
    closed = judged[judged["finish"] == "stop"].reset_index(drop=True)
    answer_keys = [*KEYS, "expression"]
    votes = closed[closed["expression"] != ""].groupby(answer_keys)["count"].sum().rename("votes")
    rules = {
        "likeliest": closed["logprob"],
        "likeliest per token": closed["logprob"] / closed["tokens"],
        "shortest": -closed["tokens"],
        VOTE: closed.join(votes, on=answer_keys)["votes"].fillna(0),
    }
    if "check" in closed:
        yes = closed["check"] == "yes"
        rules["likeliest that says yes"] = closed["logprob"].rank() + len(closed) * yes
    problem = [closed[key] for key in KEYS]
    correct = pd.DataFrame(index=metrics.counts(judged).index)
    for rule, value in rules.items():
        best = closed.loc[value.groupby(problem).idxmax()].set_index(KEYS)
        correct[rule] = best["correct"].astype(float)
    return correct.fillna(0.0)  # nothing closed, nothing right


def likeliest_of(judged: pd.DataFrame, ks: Iterable[int], checked=False) -> pd.DataFrame:
    """Whether the likeliest closed one of k samples is right, without bias: the mean over all
    choices of k of a problem's samples. Columns are the numbers `ks`. checked: those whose own
    check says yes come first, as in "likeliest that says yes".

    With the samples ranked, the likeliest of k is among the first b with probability
    1 - C(n-b, k) / C(n, k), which is pass@k with b right ones of n. Rows as in `picked`."""
    ks = [*ks]
    closed = judged["finish"] == "stop"
    right = judged["correct"].astype(bool) & closed
    table = judged[[*KEYS, "count", "logprob"]].assign(closed=closed, right=right)
    table["yes"] = judged["check"] == "yes" if checked else False
    table = table.sort_values(["closed", "yes", "logprob"], ascending=False, kind="stable")
    drawn = table.groupby(KEYS)["count"]
    last = drawn.cumsum()
    n = drawn.transform("sum")
    first = last - table["count"]
    chance = pass_at_k(n, last, ks) - pass_at_k(n, first, ks)
    chosen = pd.DataFrame(chance, table.index, ks).mul(table["right"], axis=0)
    return chosen.groupby([table[key] for key in KEYS]).sum()


def likeliest_with(judged: pd.DataFrame, samples: pd.Series, checked=False) -> pd.Series:
    """As `likeliest_of`, for as many samples as `samples` has for a method (`metrics.between`)."""

    def of(method: str, ks: list[int]) -> pd.DataFrame:
        return likeliest_of(judged[judged["method"] == method], ks, checked)

    return metrics.between(samples, of)


def solved_by_limit(judged: pd.DataFrame, start: str, limits: Iterable[int]) -> pd.DataFrame:
    """For each limit, what a method solves if its samples are cut there and it spends the tokens of
    sixteen samples of `start`, which are not cut. Columns are the limits."""
    budget = 16 * metrics.mean_tokens(judged)[start]
    solved = {}
    for limit in limits:
        cut = within(judged, limit)
        samples = paid_by(cut, budget).clip(1, 16)
        solved[limit] = metrics.solved_with(metrics.counts(cut), samples)
    return pd.DataFrame(solved)


def stopped(judged: pd.DataFrame, chosen_on: pd.DataFrame, start: str) -> pd.DataFrame:
    """What methods solve for the tokens of sixteen samples of `start` if each method's samples are
    cut at the limit that is best for it on the samples `chosen_on`. Columns solved and limit; only
    methods that are in both tables, and none if `start` is not."""
    if any(start not in table["method"].unique() for table in (judged, chosen_on)):
        no_rows = metrics.counts(judged).index[:0]
        return pd.DataFrame(columns=["solved", "limit"], index=no_rows)
    longest = int(chosen_on["tokens"].max())  # this limit cuts none
    limits = sorted({100, 120, 160, 200, 240, longest})
    by_limit = solved_by_limit(chosen_on, start, limits)
    best = by_limit.groupby("method").mean().idxmax(axis=1)
    solved = solved_by_limit(judged, start, limits)
    known = solved.index.unique("method")
    parts = []
    for method, limit in best.items():
        if method in known:
            rows = pd.Series(solved[limit]).loc[[str(method)]]
            parts.append(pd.DataFrame({"solved": rows, "limit": limit}))
    return pd.concat(parts)
