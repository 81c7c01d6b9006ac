"""All claims together: which answers stand, which are counted, and the committed table counted
again by plain code."""

import csv
import math
from functools import cache

import pandas as pd
import pytest

from lib.files import FIGURES, PAPER
from lib.study import claims, systems, tally

NAN = float("nan")
WARM = systems.named(systems.System("rloo/idle", temperature=0.8))
SEARCH = systems.search("rloo/idle", 16, 16)
SMALL = systems.search("rloo/idle", 1, 8)
TINY = systems.search("rloo/idle", 1, 1)
LACKS = systems.search("sft/lacks", 16, 16)
LESS = systems.search("sft/lacks", 1, 8)


def row(name, alone="holds", p=0.001, **about):
    """A row of `claims.evaluate`, of a claim about a hypothesis of its own."""
    values = {
        "id": name,
        "paper": name.split("-")[0],
        "claim": "A claim.",
        "runs": "rloo/a;rloo/b",
        "direction": "higher",
    }
    values |= {
        "metric": "pass@16",
        "paper_metric": "pass@16",
        "set": "heldout_1000",
        "hypothesis": name,
        "seeds": 5.0,
    }
    values |= {
        "alone": alone,
        "p": p,
        "against": "rloo/b",
        "estimate": 0.05,
        "detectable": 0.02,
        "theirs": 0.04,
        "size": "no number",
    }
    return values | about


@pytest.fixture
def together(tmp_path, monkeypatch):
    """`tally.together` with tables of its own: `posed` by id (written, support, first_time),
    `expected` by id."""

    def answers(*rows, posed=None, expected=(), treatments=None):
        known = {one["id"]: ("before", "descent") for one in rows} | (posed or {})
        lines = [(name, *values) for name, values in known.items()]
        columns = ["id", "written", "support"]
        pd.DataFrame(lines, columns=columns).to_csv(tmp_path / "posed.csv", index=False)
        why = pd.DataFrame({"id": [*expected], "why": "it could not be otherwise"})
        why.to_csv(tmp_path / "expected.csv", index=False)
        monkeypatch.setattr(tally, "PAPER", tmp_path)
        return tally.together(pd.DataFrame(rows), treatments).set_index("id")

    return answers


def test_a_direction_stands_only_if_q_is_small(together):
    """One p of .04 beside nineteen from .50 to .68: q is the least of .8 and of the largest,
    .68."""
    others = [row(f"ast-{i}", "open", 0.5 + i / 100) for i in range(19)]
    table = together(row("dense-1", p=0.04), *others)
    assert table.loc["dense-1", "q"] == pytest.approx(0.68)
    assert table.loc["dense-1", ["alone", "verdict", "answer"]].tolist() == [
        "holds",
        "open",
        "open",
    ]
    alone = together(row("dense-1", p=0.04))
    assert alone.loc["dense-1", "answer"] == "holds" and alone.loc["dense-1", "q"] == 0.04


def test_one_hypothesis_has_one_q_whoever_asks_it(together):
    shared = {"hypothesis": "the loss of coverage", "p": 0.03}
    rows = [row("ast-1", **shared), row("dense-1", **shared), row("coverage-1", **shared)]
    table = together(
        *rows, row("ast-2", "open", 0.9), row("coverage-2", p=0.04), row("coverage-3", "open", 0.6)
    )
    # two families, of two each
    assert table["q"].tolist() == pytest.approx([0.06, 0.06, 0.06, 0.9, 0.08, 0.6])
    counts = tally.tally(table.reset_index()).set_index(["study", "written"])
    assert counts.loc[("all", "before"), "open"] == 4


def test_what_was_expected_and_what_cannot_be_seen_is_left_out(together):
    rows = [
        row("ast-1", p=1e-9),
        row("ast-2", p=0.03, detectable=0.05),  # the report has .04
        row("ast-3", "open", 0.03, detectable=0.05, direction="equal"),  # reports no effect
        row("ast-4", "open", NAN),
        row("ast-5", "open", 0.9, detectable=0.03, theirs=-0.04),
        row("ast-6", "open", 0.9, theirs=NAN, detectable=9.0),
    ]
    table = together(*rows, expected=["ast-1"])
    reasons = ["it could not be otherwise", tally.NO_POWER, "", tally.NO_INTERVAL, "", ""]
    assert table["left_out"].tolist() == reasons
    assert math.isnan(table.loc["ast-1", "q"]) and table.loc["ast-1", "answer"] == "holds"
    assert table.loc["ast-2", "q"] == pytest.approx(0.06)  # in the family of the other three
    counts = tally.tally(table.reset_index()).set_index(["study", "written"]).loc[("ast", "before")]
    assert counts[["holds", "open"]].tolist() == [0, 3]
    out = tally.left_out(table.reset_index()).set_index("why")
    assert out.loc["was expected", "holds"] == out.loc[tally.NO_POWER, "open"] == 1


@pytest.mark.parametrize(
    ("name", "written", "support", "expected"),
    [
        ("coverage-1", "before", "descent", "holds"),
        ("coverage-1", "before", "times only", "holds"),
        ("coverage-1", "after", "descent", "explored"),
        ("coverage-1", "changed", "descent", "explored"),
        ("ast-1", "after", "descent", "holds"),  # what a report says was said before
    ],
)
def test_a_conjecture_that_was_not_posed_first_is_explored(
    together, name, written, support, expected
):
    posed = {name: (written, support)}
    table = together(row(name), posed=posed)
    assert table.loc[name, "answer"] == expected and table.loc[name, "verdict"] == "holds"
    missing = row(name, "not run", NAN, estimate=NAN)
    assert together(missing, posed=posed).loc[name, "answer"] == "not run"


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"runs": "rloo/idle;rloo/b"}, "untested"),
        ({"runs": f"rloo/b;{WARM}", "against": WARM}, "untested"),
        ({"runs": "rloo/acts;rloo/b"}, "holds"),
        # what distinguishes them acted
        ({"runs": "rloo/acts;rloo/idle", "against": "rloo/idle"}, "holds"),
        ({"runs": "rloo/half;rloo/b"}, "untested"),  # one of two treatments did
        ({"runs": "rloo/idle;rloo/b", "set": "training"}, "holds"),  # about the training itself
        ({"runs": "rloo/idle", "against": ""}, "holds"),  # about one policy
        ({"runs": "sft/lacks", "against": ""}, "untested"),  # which lacks what it must have
        ({"runs": "sft/lacks", "against": "", "metric": "rejected"}, "holds"),  # about the lack
        ({"runs": f"{LACKS};{LESS}", "against": LESS}, "untested"),  # two searches of this policy
        ({"runs": "sft/lacks;rloo/b"}, "untested"),
        # a report's claim about what was trained from a policy that lacks something, and ours
        ({"runs": "preference/agent_hard;rloo/b"}, "untested"),
        ({"runs": "preference/agent_hard;rloo/b", "claim": "Conjecture: so."}, "holds"),
        # what distinguishes them acted, from a start that lacks something
        ({"runs": "rloo/of_lacks;sft/lacks", "against": "sft/lacks"}, "untested"),
        # two searches of one policy, whatever its training did
        ({"runs": f"{SEARCH};{SMALL}", "against": SMALL}, "holds"),
        # what distinguishes the searches did not act
        ({"runs": f"{SEARCH};{TINY}", "against": TINY}, "untested"),
        ({"runs": "rloo/unknown;rloo/b"}, "holds"),
        # each comparison with the first, not only the weakest
        ({"runs": "rloo/b;rloo/c;rloo/idle", "against": "rloo/c"}, "untested"),
        ({"runs": "rloo/b;rloo/idle", "against": NAN, "metric": "crossover"}, "untested"),
        ({"runs": "rloo/b;rloo/idle", "against": NAN, "metric": "slope of a on b"}, "holds"),
        ({"runs": "rloo/acts;rloo/idle;rloo/b", "against": "rloo/idle"}, "holds"),
        (
            {
                "runs": "rloo/idle;rloo/b",
                "alone": "not run",
                "p": NAN,
                "estimate": NAN,
                "against": NAN,
            },
            "not run",
        ),
    ],
)
def test_a_treatment_that_did_not_act_leaves_its_comparison_untested(together, about, expected):
    rows = [("rloo/idle", "rloo/c", False), ("rloo/acts", "rloo/idle", True), ("rloo/b", NAN, True)]
    rows += [("sft/lacks", NAN, False), ("rloo/of_lacks", "sft/lacks", True)]
    rows += [("sft/pick", NAN, False)]  # data/methods.csv: where preference/agent_hard began
    rows += [(SEARCH, TINY, False)]
    rows += [
        ("rloo/half", "rloo/b", True),
        ("rloo/half", "rloo/b", False),
        ("rloo/unknown", "rloo/b", NAN),
    ]
    acted = pd.DataFrame(rows, columns=["method", "baseline", "acted"]).assign(metric="rejected")
    table = together(row("ast-1", **{"against": "rloo/b"} | about), treatments=acted)
    assert table.loc["ast-1", "answer"] == expected


def benjamini_hochberg(ps):
    """q by p, of a family of hypotheses: p m / rank, the least of these from the largest p down."""
    least = 1.0
    found = {}
    ordered = sorted(ps.items(), key=lambda item: item[1])
    for rank in range(len(ordered), 0, -1):
        name, p = ordered[rank - 1]
        least = min(least, p * len(ordered) / rank)
        found[name] = least
    return found


def recounted():
    """Every row of figures/grand_claims.csv with its verdict, answer and whether it is left out, by
    plain code from its interval, p and numbers alone. Nothing here comes from lib."""
    with open(FIGURES / "grand_claims.csv") as file:
        rows = list(csv.DictReader(file))
    with open(PAPER / "expected.csv") as file:
        expected = {one["id"] for one in csv.DictReader(file)}
    with open(FIGURES / "grand_treatment.csv") as file:
        checks = [one for one in csv.DictReader(file) if one["acted"]]
    with open(PAPER / "posed.csv") as file:
        posed = {one["id"]: one for one in csv.DictReader(file)}
    reports = {}
    own = {}
    for one in rows:
        conjecture = one["claim"].startswith("Conjecture")
        one["own"] = conjecture or one["paper"] not in ("ast", "program", "dense", "trace", "agent")
        if one["p"] and one["id"] not in expected:
            (own if one["own"] else reports)[one["hypothesis"]] = float(one["p"])
    own = {name: p for name, p in own.items() if name not in reports}
    q = benjamini_hochberg(reports) | benjamini_hochberg(own)
    for one in rows:
        one["by hand"] = by_hand(one, q, expected, posed[one["id"]], checks)
    return rows


def by_hand(one, q, expected, posed, checks):
    """(left out or not, verdict, answer) of one row."""
    if not one["estimate"]:
        return one["id"] in expected, "not run", "not run"
    low, high, seeds = (float(one[name] or "nan") for name in ("low", "high", "seeds"))
    equality = one["direction"] in ("equal", "zero")
    if one["direction"] in ("lower", "lowest"):
        low, high = -high, -low
    margin = float(one["margin"]) if equality else 0.0
    if equality:
        verdict = (
            "holds"
            if max(-low, high) < margin
            else "reversed"
            if max(low, -high) > margin
            else "open"
        )
    else:
        verdict = "holds" if low > 0 else "reversed" if high < 0 else "open"
    known = one["id"] in expected
    stands = seeds > 1 and (known or (one["p"] and q[one["hypothesis"]] <= 0.05))
    verdict = verdict if stands else "open"
    weak = bool(one["theirs"] and one["detectable"] and not equality)
    weak = weak and float(one["detectable"]) > abs(float(one["theirs"]))
    left_out = known or (seeds > 1 and not one["p"]) or weak
    explored = one["own"] and posed["written"] != "before"
    answer = "explored" if explored else verdict
    return left_out, verdict, "untested" if idle(one, checks) else answer


def idle(one, checks):
    """Whether a policy lacks what it must have by itself, or the first one is compared with another
    and the training of one of them did not act."""
    if one["set"] == "training":
        return False
    names = one["runs"].split(";")
    policies = [name.split(" ")[0] for name in names]
    concerned = set(policies)
    if not one["own"]:
        for policy in policies:
            concerned |= begun_from(policy)
    for check in checks:
        own = check["acted"] == "False" and not check["baseline"]
        if own and check["method"] in concerned and check["metric"] != one["metric"]:
            return True
    if one["metric"].startswith("slope "):
        return False
    for name, policy in zip(names[1:], policies[1:], strict=True):
        concerned = about(checks, names[0], name) or about(checks, policies[0], policy)
        if not concerned and policy != policies[0]:
            concerned = [check for check in checks if check["method"] in (policies[0], policy)]
        if any(check["acted"] == "False" for check in concerned):
            return True
    return False


@cache
def starts():
    """The policy that each policy's training began from."""
    with open(FIGURES.parent / "data/methods.csv") as file:
        return {one["method"]: one["start"] for one in csv.DictReader(file)}


def begun_from(policy):
    """The policies that a policy's training began from, one after the other."""
    found = set()
    while policy := starts().get(policy):
        found.add(policy)
    return found


def about(checks, first, other):
    """The checks about just these two, as method and baseline."""
    return [check for check in checks if {check["method"], check["baseline"]} == {first, other}]


def test_every_answer_of_the_committed_table_follows_by_plain_code():
    rows = recounted()
    assert len(rows) > 250
    for one in rows:
        said = (one["left_out"] != "", one["verdict"], one["answer"])
        assert one["by hand"] == said, (one["id"], one["by hand"], said)


@pytest.mark.parametrize(
    ("name", "own", "by"),
    [("grand_tally", False, "written"), ("grand_conjectures", True, "support")],
)
def test_the_committed_tally_is_that_of_plain_code(name, own, by):
    """Each hypothesis once in each row, sizes of what is holds, reversed or open."""
    found = {}
    for one in recounted():
        left_out, _, answer = one["by hand"]
        if left_out or one["own"] != own:
            continue
        for study in (one["paper"], "all"):
            first = found.setdefault((study, one[by]), {})
            first.setdefault(one["hypothesis"], (answer, one["size"]))
    with open(FIGURES / f"{name}.csv") as file:
        committed = {(one["study"], one[by]): one for one in csv.DictReader(file)}
    assert committed.keys() == found.keys() and len(found) > 4
    for key, hypotheses in found.items():
        for word in ("holds", "reversed", "open", "explored", "untested", "not run"):
            assert int(committed[key][word]) == sum(
                answer == word for answer, _ in hypotheses.values()
            ), (key, word)
        for word in ("excluded", "small", "uninformative"):
            count = sum(
                word in size
                for answer, size in hypotheses.values()
                if answer in ("holds", "reversed", "open")
            )
            assert int(committed[key][word]) == count, (key, word)


def test_every_word_of_an_answer_is_explained_where_it_is_counted():
    text = (FIGURES.parent / "notebooks/90_compare_all.ipynb").read_text()
    used = set(pd.read_csv(FIGURES / "grand_claims.csv")["answer"]) | {
        "excluded",
        "small",
        "uninformative",
    }
    for word in used | {*tally.ANSWERS}:
        assert f"**{word}" in text.replace("**Ex", "**ex").replace("**Sm", "**sm").replace(
            "**Un", "**un"
        ), word


def test_what_was_expected_is_a_claim_and_says_why():
    table = pd.read_csv(PAPER / "expected.csv")
    assert table["id"].is_unique and set(table["id"]) <= set(claims.planned()["id"])
    assert table["why"].str.len().gt(20).all()
