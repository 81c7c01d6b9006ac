"""Accuracy against tokens for a policy that starts again until its own check says yes.

A policy that has learned to check its attempts knows without a verifier when it has failed: the
last check of its text says no (`judging.last_check`). It can then be sampled again. The rule is:
sample until the check says yes or m attempts are spent, and answer with the accepted sample, or
with the last one. So a policy that gives up early buys accuracy with tokens, as does a policy that
searches longer in one sample, and the two are compared at equal mean tokens. This is not pass@k,
for which a verifier picks the right sample. Tokens are those of completions, without the prompt.

Of n samples of a problem, y say yes. Attempts are drawn without replacement, in random order, so
for m up to n every value here is the mean over all orders of the n samples, which is unbiased for
the policy itself, like pass@k of Chen et al. With replacement it would not be: a problem of which
one sample in sixteen says yes would find it too often. Beyond n attempts no unbiased estimate
exists, and functions raise ValueError rather than extrapolate. The first j attempts all say no with
probability q_j = C(n - y, j) / C(n, j), and then

    attempts = q_0 + ... + q_{m-1}
    accuracy = (1 - q_m) * right / y + q_m * lucky / (n - y)
    tokens   = (1 - q_m) * (mean tokens of a yes) + (attempts - (1 - q_m)) * (mean tokens of a no),

where `right` samples say yes and are correct, and `lucky` ones are correct without a yes. For m = 1
these are pass@1 and the mean length of a sample."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lib.study.intervals import COLUMNS, estimates
from lib.study.metrics import KEYS, pass_at_k, share
from lib.study.systems import at_start, start_of, trainer

MOST = 16  # attempts; the study draws sixteen samples of a problem
CHECKS = 0.5  # a policy has a check if at least this share of its texts holds one
STARTED = "start restarted for as many tokens"
GAIN = "pass@1 minus start at equal tokens, restarted"
OVER_USUAL = "pass@1 minus the usual start at equal tokens, restarted"  # whatever its own start
# what a check is worth, by the columns of `quality`, as tables call it
CHECKED = {"precision": "right, if it says yes", "never yes": "problems without any yes"}
SHOWN = [GAIN, *CHECKED]  # the columns of `scores` that stand beside what a method solves


def tallies(judged: pd.DataFrame) -> pd.DataFrame:
    """What restarts need to know of each problem's samples, indexed by KEYS.

    judged: a table of `judging.samples` with the verdict "check". Columns: n, samples; yes, those
    whose last check says yes; right, those of them that are correct; lucky, the correct ones among
    the others; yes_tokens and no_tokens, the tokens of both kinds in total; checked, the samples
    that hold a check at all. Methods with a check in less than half of their texts are left out:
    they cannot know when to start again. Raises ValueError without it."""
    if "check" not in judged:
        raise ValueError(
            'restarts need the column check: read the samples with verdicts=("answer", "check")'
        )
    yes = judged["check"] == "yes"
    correct = judged["correct"].astype(bool)
    columns = {"n": 1, "yes": yes, "right": yes & correct, "lucky": ~yes & correct}
    columns |= {
        "yes_tokens": judged["tokens"].where(yes, 0),
        "no_tokens": judged["tokens"].where(~yes, 0),
    }
    columns |= {"checked": judged["check"].isin(["yes", "no"])}
    table = pd.DataFrame(columns, index=judged.index, dtype=float).mul(judged["count"], axis=0)
    table = table.groupby([judged[key] for key in KEYS]).sum()
    totals = table.groupby("method")[["checked", "n"]].sum()
    policies = totals.index[totals["checked"] >= CHECKS * totals["n"]]
    return table[table.index.isin(policies, level="method")]


def restarted(tallies: pd.DataFrame, attempts: int) -> pd.DataFrame:
    """The accuracy and the mean tokens of each problem if up to `attempts` samples may be drawn:
    columns accuracy and tokens, index as in `tallies`. Raises ValueError unless 1 <= attempts <= n:
    see the top of this module."""
    return _restarted(tallies, _reached(tallies, attempts))


def _reached(tallies: pd.DataFrame, attempts: int) -> np.ndarray:
    """The chance of each problem that one of j samples says yes, 1 - q_j, for j = 1..attempts."""
    return pass_at_k(tallies["n"].to_numpy(), tallies["yes"].to_numpy(), [*range(1, attempts + 1)])


def _restarted(tallies: pd.DataFrame, reach: np.ndarray) -> pd.DataFrame:
    """`restarted` with as many attempts as `reach` has columns."""
    yes = tallies["yes"].to_numpy()
    no = tallies["n"].to_numpy() - yes
    accepted = reach[..., -1]
    drawn = 1 + (1 - reach[..., :-1]).sum(axis=-1)

    def mean(total: str, of: np.ndarray) -> np.ndarray:
        return tallies[total].to_numpy() / np.maximum(of, 1)

    accuracy = accepted * mean("right", yes) + (1 - accepted) * mean("lucky", no)
    tokens = accepted * mean("yes_tokens", yes) + (drawn - accepted) * mean("no_tokens", no)
    return pd.DataFrame({"accuracy": accuracy, "tokens": tokens}, tallies.index)


def curve(tallies: pd.DataFrame, most: int = MOST) -> pd.DataFrame:
    """Each problem's accuracy and tokens for every number of attempts up to `most`, or as many as
    were sampled. Columns are pairs of accuracy or tokens and the number."""
    attempts = int(min(most, tallies["n"].min()))
    reach = _reached(tallies, attempts)
    tables = {m: _restarted(tallies, reach[..., :m]) for m in range(1, attempts + 1)}
    return pd.concat(tables, axis="columns").swaplevel(axis="columns")


def at_tokens(
    tallies: pd.DataFrame, budgets: Mapping[str, float] | float, most: int = MOST
) -> pd.Series:
    """The accuracy of each problem if a method's mean sample, restarts included, costs as many
    tokens as its budget.

    budgets: mean tokens, for each method or one number for all. The mean is over the method's
    problems and runs of one set. Where no number of attempts costs exactly that, the next lower and
    the next higher number are mixed: before it begins, a user tosses a coin for the number that is
    allowed. This costs the budget on average, and its accuracy is the line between the two points.
    NaN if one sample costs more than the budget, or if `most` attempts (or all that were sampled)
    cost less: what happens beyond them is not known."""
    found = []
    for (method, _), part in tallies.groupby(["method", "set"], sort=False):
        budget = budgets if isinstance(budgets, int | float) else budgets.get(str(method), np.nan)
        found.append(_between(curve(part, most), budget))
    # which is empty
    return pd.concat(found).rename("accuracy") if found else tallies["n"].rename("accuracy")


def _between(points: pd.DataFrame, budget: float) -> pd.Series:
    """The accuracies at a budget, from a `curve` of one method on one set."""
    means = np.asarray(points["tokens"].mean())
    if not means[0] <= budget <= means[-1]:
        return pd.Series(np.nan, points.index)
    place = float(np.interp(budget, means, np.arange(len(means))))
    lower = math.floor(place)
    upper = math.ceil(place)
    accuracy = points["accuracy"].to_numpy()
    return pd.Series(
        (1 - place + lower) * accuracy[:, lower] + (place - lower) * accuracy[:, upper],
        points.index,
    )


def summary(tallies: pd.DataFrame, most: int = MOST) -> pd.DataFrame:
    """Every method's line: its accuracy and mean tokens for each number of attempts, by set and
    method. Columns set, method, attempts, tokens, and those of `intervals.estimates` for the
    accuracy."""
    tables = []
    for _, part in tallies.groupby(["method", "set"], sort=False):
        points = curve(part, most)
        table = estimates(pd.DataFrame(points["accuracy"])).rename(columns={"metric": "attempts"})
        tables.append(
            table.assign(tokens=points["tokens"].groupby("method").mean().iloc[0].to_numpy())
        )
    columns = ["set", "method", "attempts", "tokens", *COLUMNS]
    return pd.concat([pd.DataFrame(columns=columns), *tables], ignore_index=True)[
        columns
    ].infer_objects()


def quality(tallies: pd.DataFrame) -> pd.DataFrame:
    """How much a policy's check is worth, one row per problem for `lib.study.intervals`: says yes,
    the share of samples that do; precision, how many of them are correct; never yes, whether no
    sample of a problem says yes."""
    table = {
        "says yes": tallies["yes"] / tallies["n"],
        "precision": share(tallies["right"], tallies["yes"]),
    }
    return pd.DataFrame(table | {"never yes": (tallies["yes"] == 0).astype(float)})


def begun_from(method: str, known: pd.Index) -> str:
    """The SFT policy from which a method's training began, at the method's own temperature if it
    was sampled so. "" if it has none among the `known` methods."""
    start = trained_from(method)
    if not start:
        return ""
    return next((name for name in (at_start(method, start), start) if name in known), "")


def trained_from(method: str) -> str:
    """The SFT policy from which a method's training began, "" if it has none or data/methods.csv
    does not list the method."""
    start = start_of(method)
    while start and trainer(start) != "sft":  # such as IPO, from which one run of RLOO started
        start = start_of(start)
    return start


def against_start(
    tallies: pd.DataFrame, most: int = MOST, starts: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """Every method's one sample against its start, which is restarted until it has spent as many
    tokens on average.

    Index as in `tallies`, columns STARTED, the accuracy of the start, and GAIN, the method's pass@1
    minus that accuracy on the same problem, run by run. A method without a start or without common
    seeds has no row, and a start that cannot spend as much has NaN. The start's tokens are matched
    on average over its runs. starts: the start of some methods, where data/methods.csv does not
    list them."""
    empty = pd.DataFrame(columns=[STARTED, GAIN], index=tallies.index[:0], dtype=float)
    if tallies.empty:
        return empty
    once = restarted(tallies, 1)
    lengths = once["tokens"].groupby(["method", "set"]).mean()
    known = tallies.index.unique("method")
    samples_of = dict(iter(tallies.groupby(["method", "set"], sort=False)))
    curves: dict[tuple[str, str], pd.DataFrame] = {}  # of the starts: most methods share one
    parts = []
    for method, name in lengths.index:
        start = (starts or {}).get(method) or begun_from(method, known)
        if (start, name) in samples_of:
            if (start, name) not in curves:
                curves[start, name] = curve(samples_of[start, name], most)
            base = _between(curves[start, name], float(lengths[method, name]))
            base = base.rename(STARTED).rename({start: method}, level="method")
            own = once["accuracy"].xs((method, name), level=("method", "set"), drop_level=False)
            both = pd.concat([base, own.rename("own")], axis="columns", join="inner")
            parts.append(both.assign(**{GAIN: both["own"] - both[STARTED]})[[STARTED, GAIN]])
    return pd.concat([empty, *parts])


def scores(tallies: pd.DataFrame, budgets: Sequence[int] = ()) -> pd.DataFrame:
    """All that a study says of restarts, one row per problem, for `lib.study.intervals` and for
    claims: the columns of `against_start` and `quality`, and for each of `budgets` the accuracy of
    the method itself, restarted for so many mean tokens, as "restarted at 320 tokens"."""
    fixed = {f"restarted at {budget} tokens": at_tokens(tallies, budget) for budget in budgets}
    return (
        quality(tallies).join(against_start(tallies)).join(pd.DataFrame(fixed, index=tallies.index))
    )
