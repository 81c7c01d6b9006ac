"""Buckets; the bandit, compared with Eq. 7 by hand; and draws, which must follow the bandit."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.files import ROOT
from lib.game.problem import Problem, as_problems
from lib.game.sets import keys, load
from lib.game.solver import profiles, solutions
from lib.learn.curriculum import (
    CURRICULA,
    Bandit,
    EasyToHard,
    Frontier,
    MixedOnline,
    MixedSuccess,
    ShortToLong,
    buckets,
    solution_difficulty,
)
from lib.runs.declare import read_notebook
from lib.runs.parameters import check

PROBLEMS = [Problem((i, i + 1, i + 2), 10) for i in range(60)]
DIFFICULTY = np.arange(60.0)


def bandit(steps=100, seed=0, **options):
    return Bandit(PROBLEMS, DIFFICULTY, steps, seed, **options)


def test_difficulty_is_the_papers():
    some = [*as_problems(load("3to4", "test_50"))[:6], Problem((2, 2, 2), 99)]
    assert solution_difficulty(some) == pytest.approx(
        [-math.log(len(solutions(problem)) + 1) for problem in some]
    )
    assert solution_difficulty(some)[-1] == 0  # no solution is the hardest


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=6, max_size=80), st.integers(1, 6), st.integers(0, 3))
def test_buckets_are_equally_large_and_in_order(levels, number, seed):
    difficulty = np.array(levels, float)
    bucket = buckets(difficulty, number, seed)
    sizes = np.bincount(bucket, minlength=number)
    assert sizes.max() - sizes.min() <= 1
    for k in range(number - 1):
        assert difficulty[bucket == k].max() <= difficulty[bucket == k + 1].min()


def test_plain_quantiles_of_solution_counts_collapse_and_ranks_do_not():
    difficulty = solution_difficulty(as_problems(load("3to4", "heldout_1000")))
    edges = np.quantile(difficulty, np.arange(1, 6) / 6)
    assert len(np.unique(np.searchsorted(edges, difficulty))) < 6
    assert (np.bincount(buckets(difficulty, 6, 0)) >= 166).all()


def test_ties_are_broken_by_the_seed():
    same = np.zeros(60)
    assert (buckets(same, 6, 0) == buckets(same, 6, 0)).all()
    assert (buckets(same, 6, 0) != buckets(same, 6, 1)).any()


def test_the_bandit_by_hand(monkeypatch):
    monkeypatch.setattr(Bandit, "count", 2)
    arms = bandit()
    assert arms.probabilities(0).tolist() == [0.5, 0.5]  # Q starts at 0
    arms.draw(3, 0)
    arms.drawn = np.array([0, 1, 0])
    # those it was drawn with
    assert arms.learn([0.2, 0.5, 0.4], [0, 0, 0]) == {"bucket0": 0.5, "bucket1": 0.5}
    assert arms.state == pytest.approx([0.15, 0.25])  # .5 * mean(.2, .4), .5 * .5
    arms.drawn = np.array([1, 1, 1])
    arms.learn([1.0, 1.0, 1.0], [0, 0, 0])
    assert arms.state == pytest.approx([0.15, 0.625])  # bucket 0 was not drawn: it keeps its value
    weights = [math.exp(0.15), math.exp(0.625)]
    assert arms.probabilities(1) == pytest.approx([weight / sum(weights) for weight in weights])


def test_a_lower_temperature_concentrates_and_annealing_reaches_it():
    fixed = bandit()
    cold = bandit(temperature=0.3)
    cooled = bandit(final_temperature=0.3)
    brief = bandit(steps=1, final_temperature=0.3)
    for arms in (fixed, cold, cooled, brief):
        arms.state = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert cooled.probabilities(0) == pytest.approx(fixed.probabilities(50))
    assert cooled.probabilities(99) == pytest.approx(cold.probabilities(0))
    # one update has only the first temperature
    assert brief.probabilities(0) == pytest.approx(fixed.probabilities(0))
    assert (
        fixed.probabilities(0).max() < cooled.probabilities(50).max() < cold.probabilities(0).max()
    )


def test_draws_follow_the_probabilities_from_the_right_buckets():
    arms = bandit()
    arms.state = [5.0, 0.0, 0.0, 0.0, 0.0, 3.0]
    drawn = [arms.draw(24, step) for step in range(50)]
    shares = (
        np.bincount([problem.nums[0] // 10 for batch in drawn for problem in batch], minlength=6)
        / 1200
    )
    assert shares == pytest.approx(arms.probabilities(0), abs=0.03)
    for batch in drawn:
        last = [problem.nums for problem in batch if problem.nums[0] >= 50]
        assert len(set(last)) == len(last)


@pytest.mark.parametrize("count", [9, 10, 11])
def test_no_problem_is_drawn_twice_unless_its_bucket_is_too_small(count):
    arms = bandit()
    # so that all come from the first bucket, which holds ten
    arms.state = [1000.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    drawn = arms.draw(count, 0)
    assert len(drawn) == count and set(drawn) <= set(PROBLEMS[:10])
    assert (len(set(drawn)) == count) == (count <= 10)


def test_draws_depend_on_seed_step_and_state_alone():
    one = bandit()
    other = bandit()
    one.draw(8, 0)
    assert one.draw(8, 3) == other.draw(8, 3) != other.draw(8, 4)
    assert bandit(seed=1).draw(8, 3) not in (other.draw(8, 3), other.draw(8, 4), other.draw(8, 2))


@pytest.mark.parametrize("count", [2, 3, 6])
def test_short_problems_come_before_long_ones(monkeypatch, count):
    mixed = [Problem((i, i + 1, *range(i % count)), 10) for i in range(1, 61)]
    monkeypatch.setattr(ShortToLong, "count", count)
    order = ShortToLong(mixed, DIFFICULTY, 3 * count, 0)
    for step in range(3 * count):
        lengths = {len(problem.nums) for problem in order.draw(4, step)}
        assert lengths == {2 + step // 3}


def frontier():
    return Frontier(as_problems(load("3to4", "validation_200")), DIFFICULTY, 100, 0)


def test_the_frontier_is_new_reachable_and_held_out_nowhere():
    drawn = frontier().draw(24, 0)
    assert all(solutions(problem) and problem.key not in keys("evaluation") for problem in drawn)
    assert len(set(drawn)) == 24 and {len(problem.nums) for problem in drawn} == {3, 4}


def test_the_frontier_draws_no_evaluation_problem():
    """Not even from ranges that hold only a few problems."""
    of_three = [key for key in sorted(keys("evaluation")) if len(key[0]) == 3]
    nums, target = min(of_three, key=lambda key: key[0][-1] - key[0][0])
    edge = Frontier([Problem(nums, target)] * 6, np.zeros(6), 10, 0)
    drawn = edge.solvable(np.random.default_rng(0), 2000)
    assert drawn and not {problem.key for problem in drawn} & keys("evaluation")


def test_the_frontier_goes_where_success_is_a_half():
    """A policy that solves what has many solutions; of what is drawn at random it solves nearly all
    or nothing."""

    def success(some):
        return np.clip((np.log(profiles(some)[0] + 1) - 1) / 2, 0, 1)

    edge = frontier()
    distances = []
    for step in range(30):
        rates = success(edge.draw(24, step))
        distances.append(abs(rates - 0.5).mean())
        edge.learn([0.0] * 24, rates)
    assert distances[0] > 0.3 and np.mean(distances[-10:]) < 0.1
    resumed = frontier()
    resumed.state = json.loads(json.dumps(edge.state))
    assert resumed.draw(24, 30) == edge.draw(24, 30) != frontier().draw(24, 30)


def test_the_frontier_forgets():
    """A policy that comes to solve everything: what it failed at first soon weighs nothing."""
    edge = frontier()
    edge.memory = 2.0
    for step, right in enumerate([0.0] * 5 + [1.0] * 25):
        edge.draw(8, step)
        said = edge.learn([0.0] * 8, [right] * 8)
    assert said["predicted"] > 0.9


def test_the_frontier_chooses_among_a_fixed_number_of_candidates():
    """With one candidate for each problem it has no choice, whatever it has learned."""
    edge = frontier()
    rng = np.random.default_rng([0, 1])
    first = []
    edge.candidates = 1
    edge.draw(8, 0)
    edge.learn([0.0] * 8, np.arange(8) / 7)
    while len(first) < 8:
        first += edge.solvable(rng, 4 * 8)
    assert set(edge.draw(8, 1)) == set(first[:8])


def test_the_frontiers_last_round_counts():
    edge = Frontier([Problem((1, 1), 2)] * 6, np.zeros(6), 10, 0)
    edge.rounds = 1
    assert set(edge.draw(2, 0)) == {Problem((1, 1), 2)}


def test_what_the_frontier_has_seen_weighs_1_by_e_after_its_memory():
    edge = frontier()
    edge.draw(8, 0)
    edge.learn([0.0] * 8, [1.0] * 8)
    before = np.array(edge.state)
    edge.drawn = np.zeros_like(edge.drawn)  # updates from which nothing can be learned
    for _ in range(int(edge.memory)):
        edge.learn([0.0] * 8, [1.0] * 8)
    assert before.any() and edge.state == pytest.approx(before / math.e)


def test_the_frontier_does_not_search_for_ever():
    """From problems that cannot be solved, as 1 and 1 to 50, no new ones come that can."""
    edge = Frontier([Problem((1, 1), 50)] * 6, np.zeros(6), 10, 0)
    with pytest.raises(
        ValueError, match="finds no problems: 0 of .*numbers from 1 to 1 and targets from 50 to 50"
    ):
        edge.draw(2, 0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("bandit", {"temperature": -1.0}, "impossible bandit: temperature=-1.0"),
        ("bandit", {"temperature": 0.0}, "impossible bandit"),
        ("bandit", {"final_temperature": -0.5}, "impossible bandit"),
        (
            "bandit",
            {"final_temperature": math.nan},
            "bandit: final_temperature must be a finite number, .*, not nan",
        ),
        (
            "bandit",
            {"temperature": math.inf},
            "bandit: temperature must be a finite number, .*, not inf",
        ),
        (
            "bandit",
            {"temperature": "hot"},
            "bandit: temperature must be a finite number, .*, not .hot.",
        ),
        ("bandit", {"alpha": 0.5}, "bandit has no option 'alpha'"),
        ("frontier", {"candidates": 30}, "frontier has no option 'candidates'"),
        ("short_to_long", {"count": 3}, "short_to_long has no option 'count'"),
        ("mixed", {}, "curriculum is 'mixed': it needs a run of probes"),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_trains(name, options, message):
    given, _ = read_notebook(ROOT / "notebooks/11_train_rloo.ipynb")
    with pytest.raises(ValueError, match=message):
        check(given | {"curriculum": name, "curriculum_options": options}, given, "11_train_rloo")
    given["probes"] = "data/reference/cpu/pairs/free/0"
    for curriculum in CURRICULA:
        check(given | {"curriculum": curriculum}, given, "11_train_rloo")


def test_mistakes_are_refused():
    with pytest.raises(ValueError, match="3 problems do not fill 6 buckets"):
        Bandit(PROBLEMS[:3], DIFFICULTY[:3], 12, 0)


def test_mixed_success_draws_what_sometimes_succeeds(monkeypatch):
    monkeypatch.setattr(MixedSuccess, "count", 4)
    failures = np.repeat([0.0, 0.5, 0.75, 1.0], 25)
    chosen = MixedSuccess([Problem((i + 1, 2, 3), 10) for i in range(100)], failures, 10, 0)
    assert chosen.probabilities(0) == pytest.approx([0, 4 / 7, 3 / 7, 0])
    drawn = {problem.nums[0] - 1 for step in range(10) for problem in chosen.draw(8, step)}
    assert drawn <= set(range(25, 75)) and len(drawn) > 30
    for rates in (np.zeros(100), -np.arange(100.0)):
        with pytest.raises(ValueError, match="failure rates"):
            MixedSuccess(chosen.problems, rates, 10, 0)


def test_easy_problems_come_before_hard_ones():
    order = EasyToHard(PROBLEMS, DIFFICULTY, 12, 0)
    for step in range(12):
        stages = {int(problem.nums[0]) // 10 for problem in order.draw(4, step)}
        assert stages == {step // 2}


def test_difficulty_that_is_estimated_while_training_follows_the_policy():
    """A policy that solves what has many solutions: what it surely solves or fails is drawn less
    and less."""
    pool = as_problems(load("3to4", "heldout_1000"))

    def success(some):
        return np.clip((np.log(profiles(some)[0] + 1) - 1) / 2, 0, 1)

    order = MixedOnline(pool, np.zeros(len(pool)), 100, 0)
    assert order.predict(order.all_features) == pytest.approx(0.5)  # nothing is known yet
    distances = []
    for step in range(30):
        drawn = order.draw(24, step)
        assert len(set(drawn)) == 24
        rates = success(drawn)
        distances.append(abs(rates - 0.5).mean())
        order.learn([0.0] * 24, rates)
    at_random = abs(success(pool) - 0.5).mean()
    assert distances[0] == pytest.approx(at_random, abs=0.1)
    assert np.mean(distances[-10:]) < at_random - 0.05
    resumed = MixedOnline(pool, np.zeros(len(pool)), 100, 0)
    resumed.state = json.loads(json.dumps(order.state))
    assert resumed.draw(24, 30) == order.draw(24, 30)


def test_a_problem_is_drawn_in_proportion_to_its_predicted_mixture():
    """p (1 - p), against a naive count of draws."""
    order = MixedOnline(PROBLEMS, DIFFICULTY, 100, 0)
    order.all_features = np.eye(5)[np.arange(60) % 5]
    # p = .05, .2, .5, .8, .95
    order.state = [*np.diag([99.0] * 5).ravel(), -45.0, -30.0, 0.0, 30.0, 45.0]
    drawn = [p.nums[0] % 5 for step in range(2000) for p in order.draw(1, step)]
    weights = np.array([0.0475, 0.16, 0.25, 0.16, 0.0475])
    assert np.bincount(drawn) / 2000 == pytest.approx(weights / weights.sum(), abs=0.03)
