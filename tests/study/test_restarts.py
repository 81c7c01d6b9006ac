"""Restarts by a policy's own check: the closed form against every order of the samples, hand cases,
and properties."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.study import judging, metrics, restarts, systems
from lib.study.systems import System


def judged(*problems, method="a", seed=0):
    """A table of samples. Each problem is a list of (check, correct, tokens), each drawn once."""
    rows = []
    for number, samples in enumerate(problems):
        for check, correct, tokens in samples:
            rows.append((method, seed, "held", number, check, correct, tokens, 1))
    return pd.DataFrame(rows, columns=[*metrics.KEYS, "check", "correct", "tokens", "count"])


def by_hand(samples, attempts):
    """Accuracy and tokens over all orders of the samples, drawn one by one."""
    correct = 0
    tokens = 0
    orders = [*permutations(samples)]
    for order in orders:
        answer = False
        for check, right, length in order[:attempts]:
            answer = right
            tokens += length
            if check == "yes":
                break
        correct += answer  # of the accepted sample, or of the last
    return correct / len(orders), tokens / len(orders)


SAMPLE = st.tuples(st.sampled_from(["yes", "no", ""]), st.booleans(), st.integers(1, 90))
SAMPLES = st.lists(SAMPLE, min_size=1, max_size=5)


@settings(deadline=None)
@given(SAMPLES, st.integers(1, 5))
def test_the_closed_form_is_the_mean_over_all_orders(samples, attempts):
    table = restarts.tallies(
        judged([*samples, ("no", False, 5)]).assign(check=lambda t: t["check"].replace("", "no"))
    )
    samples = [
        (check or "no", right, length) for check, right, length in [*samples, ("no", False, 5)]
    ]
    attempts = min(attempts, len(samples))
    found = restarts.restarted(table, attempts).iloc[0]
    assert np.allclose(found[["accuracy", "tokens"]], by_hand(samples, attempts))


def test_a_case_by_hand():
    """Four samples: one says yes and is right; of three that say no one is right by luck. Two
    attempts accept the yes with probability 1/2; otherwise the last answer is right once in
    three."""
    samples = [("yes", True, 30), ("no", True, 10), ("no", False, 10), ("no", False, 40)]
    found = restarts.restarted(restarts.tallies(judged(samples)), 2).iloc[0]
    assert found["accuracy"] == pytest.approx(1 / 2 + 1 / 2 * 1 / 3)
    # 1 + 3/4 attempts
    assert found["tokens"] == pytest.approx(1 / 2 * 30 + (1 + 3 / 4 - 1 / 2) * 20)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(SAMPLE, min_size=4, max_size=4), min_size=1, max_size=6))
def test_more_attempts_cost_more_and_one_attempt_is_pass_at_1(problems):
    samples = judged(*problems)
    table = restarts.tallies(samples.assign(check=samples["check"].replace("", "no")))
    points = restarts.curve(table)
    counts = metrics.counts(samples)
    assert np.allclose(points["accuracy", 1], counts["c"] / counts["n"])
    assert np.allclose(points["tokens", 1], samples["tokens"].groupby(samples["problem"]).mean())
    assert (points["tokens"].diff(axis="columns").iloc[:, 1:] >= -1e-9).all(axis=None)
    trusted = table["right"] * (table["n"] - table["yes"]) >= table["lucky"] * table["yes"]
    rises = points["accuracy"].diff(axis="columns").iloc[:, 1:] >= -1e-9
    # where a yes is worth at least as much as a no
    assert rises[trusted & (table["yes"] > 0)].all(axis=None)
    assert points["accuracy"].max(axis=None) <= 1 + 1e-9


def test_a_budget_between_two_numbers_of_attempts_mixes_them():
    rng = np.random.default_rng(0)
    problems = []
    for yes, right in zip(rng.integers(2, size=(9, 4)), rng.integers(2, size=(9, 4)), strict=True):
        checks = np.where(yes, "yes", "no").tolist()
        problems.append([*zip(checks, right.tolist(), (10, 20, 30, 40), strict=True)])
    table = restarts.tallies(judged(*problems))
    points = restarts.curve(table)
    one, two = (points["tokens", m].mean() for m in (1, 2))
    halfway = restarts.at_tokens(table, float((one + two) / 2))
    assert np.allclose(halfway, (points["accuracy", 1] + points["accuracy", 2]) / 2)
    assert np.allclose(restarts.at_tokens(table, {"a": float(two)}), points["accuracy", 2])


def test_the_line_of_a_method_is_its_mean_over_problems():
    problems = [[("yes", True, 10), ("no", False, 20)], [("no", False, 30), ("no", True, 30)]]
    line = restarts.summary(restarts.tallies(judged(*problems))).set_index("attempts")
    assert list(line.index) == [1, 2] and list(line["runs"]) == [1, 1]
    assert np.allclose(line["estimate"], [0.5, 0.75]) and np.allclose(
        line["tokens"], [22.5, (20 + 60) / 2]
    )


def test_what_was_not_sampled_is_not_known():
    """No number below the cost of one sample, none beyond all samples, and an error for more
    attempts than samples."""
    table = restarts.tallies(judged([("no", False, 10), ("no", False, 10)]))
    assert (
        restarts.at_tokens(table, 9.0).isna().all() and restarts.at_tokens(table, 21.0).isna().all()
    )
    assert restarts.at_tokens(table, 20.0).eq(0).all()
    with pytest.raises(ValueError, match="draw more samples"):
        restarts.restarted(table, 3)


def test_a_policy_that_writes_no_check_has_no_number():
    silent = judged([("", True, 10)] * 3 + [("yes", True, 10)], method="silent")
    both = pd.concat([silent, judged([("yes", True, 10)] * 4, method="asks")])
    assert list(restarts.tallies(both).index.unique("method")) == ["asks"]
    assert restarts.tallies(silent).empty and restarts.against_start(restarts.tallies(silent)).empty
    with pytest.raises(ValueError, match="check"):
        restarts.tallies(silent.drop(columns="check"))


def test_a_method_is_compared_with_its_start_run_by_run_for_as_many_tokens():
    """The start is right in half of its samples and knows it: with 20 tokens it has two attempts
    for 10 each."""
    start = [
        judged([("yes", True, 10)] * 2 + [("no", False, 10)] * 2, method="sft/free", seed=s)
        for s in (0, 1)
    ]
    tokens = restarts.restarted(restarts.tallies(start[0]), 2)["tokens"].iloc[0]
    trained = judged(
        [("yes", True, tokens)] * 3 + [("no", False, tokens)], method="rloo/sparse", seed=1
    )
    found = restarts.against_start(restarts.tallies(pd.concat([*start, trained])))
    assert list(found.index) == [("rloo/sparse", 1, "held", 0)]
    assert found[restarts.STARTED].iloc[0] == pytest.approx(5 / 6)
    assert found[restarts.GAIN].iloc[0] == pytest.approx(3 / 4 - 5 / 6)


@pytest.mark.parametrize(
    "method, start",
    [
        ("rloo/sparse", "sft/free"),
        ("rloo/sparse T0.8", "sft/free T0.8"),
        (systems.named(System("rloo/sparse", temperature=1.0)), "sft/free"),
        ("rloo/cov_ipo_pass4", "sft/free"),  # which started from IPO
        ("rloo/program", "sft/program"),
        ("sft/free", ""),
        ("rloo/yours", ""),
    ],
)
def test_the_start_is_the_nearest_sft_policy_at_the_same_temperature(method, start):
    assert (
        restarts.begun_from(method, pd.Index(["sft/free", "sft/free T0.8", "sft/program"])) == start
    )


@pytest.mark.parametrize(
    "text, check",
    [
        ("<think>\n1 + 2 = 3, 4? no\n2 * 2 = 4, 4? yes\n</think>\n<answer>2 * 2</answer>", "yes"),
        ("2 * 2 = 4, 4? yes\n1 + 2 = 3, 4? no\n1 +", "no"),
        ("<pick>1, 2, +</pick>", ""),
        ("", ""),
    ],
)
def test_the_last_check_counts(text, check):
    assert list(judging.last_check([text])) == [check]


def in_python(text: str) -> str:
    """The last check of one text, read in the plainest way."""
    places = {text.rfind(f"? {word}"): word for word in ("yes", "no")}
    return places.get(max(places), "") if max(places) >= 0 else ""


def test_what_a_check_is_worth_by_hand():
    """Three samples say yes, of which two are right, and no sample of the second problem does."""
    first = [("yes", True, 10), ("yes", True, 10), ("yes", False, 10), ("no", True, 10)]
    second = [("no", True, 10)] * 4
    table = restarts.scores(restarts.tallies(judged(first, second)))
    assert {*restarts.SHOWN} <= {*table.columns}
    of_check = table[[*restarts.CHECKED]].mean()
    assert of_check["precision"] == pytest.approx(2 / 3)
    assert of_check["never yes"] == 1 / 2


def test_published_samples_have_the_check_of_their_texts():
    """SFT says yes in more than a third of its samples of four problems in nine, and is then nearly
    always right."""
    folder = "data/reference/cpu/sample/sft_free/0"
    found = judging.samples(folder, "heldout_1000", ("answer", "check"), texts=True)
    assert (found["check"] == found["completion"].map(in_python)).all()
    table = restarts.tallies(found)
    quality = restarts.quality(table).mean()
    assert 0.3 < quality["says yes"] < 0.45 and quality["precision"] > 0.9
    assert (
        restarts.restarted(table, 16)["accuracy"].mean()
        > 1.5 * restarts.restarted(table, 1)["accuracy"].mean()
    )
