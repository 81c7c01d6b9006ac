"""All claims together: which answers stand among so many, which do not count, and how many there
are.

`claims` answers each claim by its own interval. So many intervals decide something by chance, so an
answer on direction stands only if the q of its hypothesis is at most .05 (Benjamini and Hochberg,
1995). A hypothesis is one, however many claims ask it. All hypotheses of the reports are one
family, and those that only our conjectures ask are another. The column `verdict` says what stands:
holds, reversed, open or not run. The column `answer` says what this answers:

holds, reversed  the verdict: as in `claims`, and q is at most .05
open             the verdict: neither
explored         a conjecture of ours that was not written down before its first result, by
                 data/paper/posed.csv; from 28 November 2026 on, the history itself must show it
untested         the treatment of a policy did not act (figures/grand_treatment.csv), so the claim
                 is not tested
not run          the runs do not exist

`left_out` says why an answer is in no tally: it could not have been otherwise or was a condition
for the choice of the setup (data/paper/expected.csv), it has no interval over runs, or the
comparison could not have seen the report's effect: `detectable` is larger than the report's number.
Neither depends on how the claim was answered. What could not have been otherwise is in no family.
"""

import pandas as pd
from scipy.stats import false_discovery_control

from lib.files import PAPER
from lib.study.systems import lineage, policy_of

Q = 0.05
VERDICTS = ["holds", "reversed", "open"]
ANSWERS = [*VERDICTS, "explored", "untested", "not run"]
SIZES = ["excluded", "small", "uninformative"]
WRITTEN = ["before", "after", "changed", "unknown"]  # its first result, of data/paper/posed.csv
SUPPORT = ["descent", "times only", ""]  # what shows that; the last: it has no result
NO_POWER = "could not have seen the report's effect"
NO_INTERVAL = "has no interval over runs"
REPORTS = ["ast", "program", "dense", "trace", "agent"]


def ours(answers: pd.DataFrame) -> pd.Series:
    """Whether each claim is a conjecture of our own and not a claim of a report."""
    return ~answers["paper"].isin(REPORTS) | answers["claim"].str.startswith("Conjecture")


def together(answers: pd.DataFrame, treatments: pd.DataFrame | None = None) -> pd.DataFrame:
    """`answers` (the claims with the columns of `claims.evaluate`) with the columns written and
    support (of data/paper/posed.csv), left_out, q, verdict and answer.

    treatments: columns method, baseline, metric and acted, whether a method's treatment acted."""
    posed = pd.read_csv(PAPER / "posed.csv").set_index("id")
    expected = pd.read_csv(PAPER / "expected.csv").set_index("id")["why"]
    table = answers.assign(
        hypothesis=answers["hypothesis"].fillna(answers["id"]),
        written=answers["id"].map(posed["written"]).fillna("unknown"),
        support=answers["id"].map(posed["support"]).fillna(""),
        left_out=answers["id"].map(expected).fillna(""),
    )
    table["q"] = q_values(table[table["left_out"] == ""])
    for reason, lacks in ((NO_INTERVAL, _no_interval(table)), (NO_POWER, _too_weak(table))):
        table.loc[lacks & (table["left_out"] == ""), "left_out"] = reason
    # By q, or by the interval alone: what was expected is in no family
    stands = (table["q"] <= Q) | table["id"].isin(expected.index)
    decided = table["alone"].isin(["holds", "reversed"])
    table["verdict"] = table["alone"].where(~decided | stands, "open")
    table["answer"] = table["verdict"]
    answered = table["verdict"] != "not run"
    table.loc[answered & explored(table), "answer"] = "explored"
    if treatments is not None:
        table.loc[answered & untested(table, treatments), "answer"] = "untested"
    return table


def q_values(answers: pd.DataFrame) -> pd.Series:
    """The q of each claim that has a p. One p per hypothesis; a hypothesis of a report is in the
    reports' family, whoever else asks it."""
    tested = answers[answers["p"].notna()]
    asked_by_report = set(tested.loc[~ours(tested), "hypothesis"])
    of_reports = tested["hypothesis"].isin(asked_by_report)
    found = [pd.Series(dtype=float)]
    for family in (tested[of_reports], tested[~of_reports]):
        p = family.groupby("hypothesis")["p"].max().astype(float)
        found.append(pd.Series(false_discovery_control(p), p.index))
    return answers["hypothesis"].where(answers["p"].notna()).map(pd.concat(found))


def _no_interval(answers: pd.DataFrame) -> pd.Series:
    """Whether an estimate of several runs has no error over runs, and so no p."""
    return answers["p"].isna() & answers["estimate"].notna() & (answers["seeds"] > 1)


def _too_weak(answers: pd.DataFrame) -> pd.Series:
    """Whether a comparison could not have seen the report's effect, by its power of 80%. Claims of
    equality report no effect."""
    of_direction = ~answers["direction"].isin(["equal", "zero"])
    return of_direction & (answers["detectable"] > answers["theirs"].abs())


def explored(answers: pd.DataFrame) -> pd.Series:
    """Whether a conjecture does not test anything, since a result came before its present form."""
    return ours(answers) & (answers["written"] != "before")


def untested(answers: pd.DataFrame, treatments: pd.DataFrame) -> pd.Series:
    """Whether the treatment of a policy that a claim names did not act. Claims about the training
    itself are not asked.

    A row of `treatments` without a baseline is about what a policy must do by itself, such as to
    name legal moves. If it does not, no claim about it is tested, except those about that number,
    and none of a report about a policy that was trained from it: the report presupposes the number.
    A conjecture of ours names the start that it is about, lacking or not.
    Other rows say whether a training, or an option of a search, changed what it is meant to change.
    They are asked where the first policy or search is compared with others, and a row about just
    these two, as method and baseline, decides. A slope over runs compares no policies."""
    known = treatments[treatments["acted"].notna()]
    idle = known[~known["acted"].astype(bool)]
    idle_names = set(idle["method"])
    lacking = idle[idle["baseline"].fillna("") == ""]
    lacks = lacking.groupby("method")["metric"].agg(set).to_dict()
    between = {}
    for row in known.itertuples():
        pair = frozenset((row.method, row.baseline))
        between[pair] = between.get(pair, True) and bool(row.acted)

    def acted(first: str, other: str) -> bool:
        """Whether what distinguishes two systems acted."""
        policies = frozenset((policy_of(first), policy_of(other)))
        for pair in (frozenset((first, other)), policies):
            if pair in between:
                return between[pair]
        return len(policies) < 2 or not policies & idle_names

    def without_treatment(claim: pd.Series) -> bool:
        if claim["set"] == "training":
            return False
        if claim["metric"].startswith("slope "):
            return False
        first, *others = claim["runs"].split(";")
        for name in map(policy_of, (first, *others)):
            concerned = [name] if claim["ours"] else lineage(name)
            if any(lacks.get(policy, set()) - {claim["metric"]} for policy in concerned):
                return True
        return not all(acted(first, other) for other in others)

    return answers.assign(ours=ours(answers)).apply(without_treatment, axis=1)


def distinct(answers: pd.DataFrame) -> pd.DataFrame:
    """One row per hypothesis, the first."""
    return answers[~answers.duplicated("hypothesis")]


def tally(answers: pd.DataFrame, by: str = "written") -> pd.DataFrame:
    """Counts hypotheses that are not left out: one row per study and value of `by`, one for all
    studies together and each value of `by`. Columns: the answers; then of how many that hold, are
    reversed or open the report's number is excluded, or the size small or uninformative."""
    counted = answers[answers["left_out"] == ""]
    orders = {"written": WRITTEN, "support": SUPPORT}
    rows = []
    for study in [*counted["paper"].unique(), "all"]:
        part = counted if study == "all" else counted[counted["paper"] == study]
        for value in orders[by]:
            of_value = part[part[by] == value]
            if len(of_value):
                rows.append({"study": study, by: value} | _counts(of_value))
    return pd.DataFrame(rows, columns=["study", by, *ANSWERS, *SIZES])


def _counts(answers: pd.DataFrame) -> dict[str, int]:
    """How many hypotheses have each answer, and how many of those with a verdict each size."""
    hypotheses = distinct(answers)
    counts = {name: int((hypotheses["answer"] == name).sum()) for name in ANSWERS}
    sizes = hypotheses.loc[hypotheses["answer"].isin(VERDICTS), "size"]
    return counts | {name: int(sizes.str.contains(name).sum()) for name in SIZES}


def left_out(answers: pd.DataFrame) -> pd.DataFrame:
    """How many hypotheses are in no tally, by reason and answer."""
    kept = answers[answers["left_out"] != ""]
    reasons = kept["left_out"].where(kept["left_out"].isin([NO_POWER, NO_INTERVAL]), "was expected")
    rows = []
    for reason in dict.fromkeys(reasons):
        rows.append({"why": reason} | _counts(kept[reasons == reason]))
    return pd.DataFrame(rows, columns=["why", *ANSWERS, *SIZES])


def readings(answers: pd.DataFrame) -> pd.DataFrame:
    """The claims of `agent` on pass@1, which exist in two readings: one row of counts for each."""
    both = answers[answers["paper"].eq("agent") & answers["paper_metric"].eq("pass@1")]
    exists_twice = both["id"].str.rstrip("b").duplicated(keep=False)
    both = both[exists_twice & (both["left_out"] == "")]
    names = {"pass@1": "the game that the search selects", "any": "any game that the search keeps"}
    rows = []
    for metric, reading in names.items():
        rows.append({"reading": reading} | _counts(both[both["metric"] == metric]))
    return pd.DataFrame(rows, columns=["reading", *ANSWERS, *SIZES])
