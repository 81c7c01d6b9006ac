"""Equal tokens, cut searches, and one of many samples picked without a verifier: against naive
forms, hand cases and properties."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.study import coverage, intervals, metrics

# what a sample is: logprob, tokens, whether it is closed, whether it says yes, whether it is right
SAMPLE = st.tuples(
    st.integers(-40, -1), st.integers(1, 300), st.booleans(), st.booleans(), st.booleans()
)


def judged(*problems, method="sft/free", seed=0):
    """A table of samples. Each problem is a list of samples as above, each drawn once; a right
    answer is "1 + 2", and a wrong one "1 - 2"."""
    rows = []
    for number, samples in enumerate(problems):
        for logprob, tokens, closed, yes, right in samples:
            row = (method, seed, "held", number, float(logprob), tokens)
            ends = ("stop" if closed else "length", "yes" if yes else "no", right)
            texts = ("1 + 2" if right else "1 - 2", "correct" if right else "wrong_value")
            rows.append((*row, *ends, *texts, "1 + 2" if right else "", 1))
    columns = [*metrics.KEYS, "logprob", "tokens", "finish", "check", "correct"]
    columns += ["expression", "status", "solution", "count"]
    return pd.DataFrame(rows, columns=columns)


def merged(table):
    """The same samples, with equal ones in one row, as files have them."""
    columns = [name for name in table if name != "count"]
    return table.groupby(columns, sort=False)["count"].sum().reset_index()


def first(samples, checked):
    """Whether the likeliest closed sample is right, by looking at each of them."""
    closed = [sample for sample in samples if sample[2]]
    if checked and any(sample[3] for sample in closed):
        closed = [sample for sample in closed if sample[3]]
    return bool(closed) and max(closed, key=lambda sample: sample[0])[4]


def distinct(samples):
    """No two different samples are equally likely."""
    return [(-i - 1, *sample[1:]) for i, sample in enumerate(samples)]


@given(st.lists(SAMPLE, min_size=4, max_size=6), st.integers(1, 4), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_likeliest_of_k_is_the_mean_over_all_choices(samples, k, checked):
    samples = distinct(samples)
    naive = np.mean([first(some, checked) for some in combinations(samples, k)])
    table = coverage.likeliest_of(judged(samples), [k], checked)
    assert table[k].tolist() == pytest.approx([naive])


def test_equal_samples_count_as_often_as_they_were_drawn():
    right = (-1, 10, True, True, True)
    wrong = (-2, 10, True, True, False)
    table = judged([right, right, wrong, wrong, wrong])
    whole = coverage.likeliest_of(table, [1, 2])
    assert len(merged(table)) == 2
    assert whole.iloc[0].tolist() == pytest.approx([0.4, 0.7])  # 1 - 3/5 * 2/4
    pd.testing.assert_frame_equal(coverage.likeliest_of(merged(table), [1, 2]), whole)


@given(st.lists(SAMPLE, min_size=3, max_size=8))
@settings(max_examples=60, deadline=None)
def test_the_likeliest_of_all_is_what_the_rule_picks(samples):
    table = judged(distinct(samples))
    of_all = [coverage.likeliest_of(table, [len(samples)], checked) for checked in (False, True)]
    rules = coverage.picked(table)
    for made, rule in zip(of_all, ("likeliest", "likeliest that says yes"), strict=True):
        assert made[len(samples)].tolist() == pytest.approx(rules[rule].tolist())


def test_each_rule_picks_what_its_name_says():
    samples = [
        (-9, 30, True, True, True),  # the only right one: it says yes
        (-1, 40, True, False, False),  # the likeliest
        (-3, 10, True, False, False),  # the shortest
        (-8, 20, True, False, False),
        (-99, 5, False, True, True),  # cut: nobody picks it
    ]
    found = coverage.picked(judged(samples)).iloc[0]
    assert found[found == 1].index.tolist() == ["likeliest that says yes"]
    longer = [(-9, 900, *samples[0][2:]), *samples[1:]]
    assert coverage.picked(judged(longer)).iloc[0]["likeliest per token"] == 1  # .01 nats each
    voted = [samples[0]] * 4 + samples[1:]
    assert coverage.picked(judged(voted)).iloc[0][coverage.VOTE] == 1


def test_a_problem_of_which_nothing_is_closed_is_not_solved():
    cut = (-1, 300, False, True, True)
    table = coverage.picked(judged([cut, cut], [(-1, 10, True, True, True)]))
    assert table["likeliest"].tolist() == [0, 1]
    assert coverage.likeliest_of(judged([cut, cut]), [1])[1].tolist() == [0]


def test_a_search_that_is_cut_gives_no_answer():
    table = judged([(-1, 100, True, True, True), (-1, 101, True, True, True)])
    cut = coverage.within(table, 100)
    assert cut["correct"].tolist() == [True, False]
    assert cut["tokens"].tolist() == [100, 100]
    assert cut["status"].tolist() == ["correct", "missing"]
    assert table["correct"].all()


def two_methods():
    """SFT samples of 100 tokens, and samples of another method of 250; sixteen of each."""
    shorter = [(-1, 100, True, False, i < 4) for i in range(16)]
    longer = [(-1, 250, True, False, i < 8) for i in range(16)]
    return pd.concat([judged(shorter), judged(longer, method="rloo/sparse")], ignore_index=True)


def test_equal_tokens_pay_for_fewer_samples_that_are_longer():
    table = two_methods()
    samples = coverage.affordable(table, "sft/free")
    assert samples.to_dict() == pytest.approx({"rloo/sparse": 6.4, "sft/free": 16})
    assert coverage.affordable(table, "sft/free", most=2)["rloo/sparse"] == 1  # one at least
    solved = coverage.scores(table, "sft/free")[intervals.EQUAL].droplevel([1, 2, 3])
    six, seven = metrics.pass_at_k(16, 8, [6, 7])
    assert solved["rloo/sparse"] == pytest.approx(0.6 * six + 0.4 * seven)
    assert solved["sft/free"] == 1
    shown, gaps = coverage.at_equal_tokens(table, "sft/free")
    assert shown.set_index("method").loc["rloo/sparse", "samples"] == 6.4
    assert gaps["estimate"].tolist() == pytest.approx([solved["rloo/sparse"] - 1])


def test_a_mixture_needs_both_halves_to_fail():
    scores = metrics.problem_scores(metrics.counts(two_methods()), coverage.KS, mean_to=())
    mixed = coverage.half_and_half(scores, "rloo/sparse", "sft/free").iloc[0]
    assert mixed.name[0] == "rloo/sparse 8 + 8"
    assert mixed["pass@1"] == pytest.approx((0.25 + 0.5) / 2)
    assert mixed["pass@2"] == pytest.approx(1 - 0.75 * 0.5)


def test_a_limit_is_chosen_on_other_samples_than_it_is_judged_on():
    """There all that is right comes within 100 tokens, and here only later."""
    early = [(-1, 90, True, False, i < 2) for i in range(16)]
    late = [(-1, 300, True, False, i < 2) for i in range(16)]
    chosen_on = pd.concat([judged(early), judged(early[:2] + late[2:], method="rloo/sparse")])
    table = pd.concat([judged(early), judged(late, method="rloo/sparse")])
    stops = coverage.stopped(table, chosen_on, "sft/free").droplevel([1, 2, 3])
    assert stops.loc["rloo/sparse"].tolist() == [0, 100]
    assert coverage.stopped(table, chosen_on[chosen_on["method"] != "sft/free"], "sft/free").empty
