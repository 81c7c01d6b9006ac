"""Curricula: the choice of the problems for each update. Most curricula divide the problems into
buckets by difficulty.

`Bandit` is that of `dense`, "Enhancing RLOO with Dense Symbolic Rewards and Bandit-Driven
Curricula" (Sangpisit and Thawornbut), Section 3.5; ours learns from an update before it draws the
problems of the next one. `Frontier` follows a suggestion of its Section 7, as does `EasyToHard`;
`MixedSuccess`, `MixedOnline` and `ShortToLong` follow `trace` and `program`."""

from collections.abc import Sequence
from functools import cached_property
from math import exp

import numpy as np

from lib.game.problem import Problem
from lib.game.sets import keys
from lib.game.solver import count_all, profiles


def solution_difficulty(problems: Sequence[Problem]) -> np.ndarray:
    """d(x) = -log(|S(x)| + 1), shape (problems,): a problem with fewer solutions is harder."""
    return -np.log(count_all(problems) + 1.0)


def buckets(difficulty: np.ndarray, count: int, seed: int) -> np.ndarray:
    """The bucket of each problem, from 0 (easiest) to count - 1. The sizes of buckets differ by at
    most one problem.

    Buckets are quantiles of the rank, with equally difficult problems in random order: quantiles of
    the difficulty itself, which takes few values, would leave some buckets empty."""
    order = np.lexsort((np.random.default_rng(seed).random(len(difficulty)), difficulty))
    return order.argsort() * count // max(len(difficulty), 1)


class Curriculum:
    """Draws a bucket for each problem of an update, and then a problem from that bucket.

    The method `probabilities(step)` of a subclass gives the probability of each bucket. The draws
    depend on the seed, the step and `state`, which is part of a checkpoint. Raises ValueError if
    there are fewer problems than buckets."""

    count = 6  # buckets

    @staticmethod
    def check() -> None:
        """Raises ValueError for options that are out of range. `lib.runs.parameters` calls it
        before any run starts."""

    def __init__(self, problems: Sequence[Problem], difficulty: np.ndarray, steps: int, seed: int):
        if self.count > len(problems):
            raise ValueError(f"{len(problems)} problems do not fill {self.count} buckets")
        self.problems = problems
        self.steps = steps
        self.seed = seed
        self.state: list[float] = []  # what the curriculum has learned
        bucket = buckets(difficulty, self.count, seed)
        self.members = [np.flatnonzero(bucket == k) for k in range(self.count)]

    def probabilities(self, step: int) -> np.ndarray:
        raise NotImplementedError

    def draw(self, count: int, step: int) -> list[Problem]:
        """The problems of update `step` (from 0). None is drawn twice unless its bucket is too
        small."""
        rng = np.random.default_rng([self.seed, step])
        self.shares = self.probabilities(step)
        self.drawn = rng.choice(self.count, count, p=self.shares)
        indices = np.empty(count, int)
        for k, members in enumerate(self.members):
            in_bucket = self.drawn == k
            indices[in_bucket] = rng.choice(
                members, in_bucket.sum(), replace=in_bucket.sum() > len(members)
            )
        return [self.problems[i] for i in indices]

    def learn(self, signal: Sequence[float], correct: Sequence[float]) -> dict[str, float]:
        """Learns from the mean |advantage| and the share of correct rollouts of each problem that
        was drawn last, and returns numbers for the log."""
        return {f"bucket{k}": float(share) for k, share in enumerate(self.shares)}


class Bandit(Curriculum):
    """`dense`, Eq. 7: p(k) = softmax(Q / temperature)_k and Q_k <- alpha l_k + (1 - alpha) Q_k,
    starting from Q = 0. Here l_k is the mean |advantage| over the problems drawn from bucket k; a
    bucket that was not drawn keeps its Q.

    The temperature falls linearly to final_temperature over the run (if this is 0, the temperature
    is constant)."""

    alpha = 0.5

    @staticmethod
    def check(temperature: float, final_temperature: float) -> None:
        if not (0 < temperature < np.inf and 0 <= final_temperature < np.inf):
            raise ValueError(
                f"impossible bandit: temperature={temperature}, "
                f"final_temperature={final_temperature}"
            )

    def __init__(self, *data, temperature=1.0, final_temperature=0.0):
        super().__init__(*data)
        self.ends = temperature, final_temperature or temperature
        self.state = [0.0] * self.count

    def probabilities(self, step: int) -> np.ndarray:
        from scipy.special import softmax  # imported here because it takes half a second

        temperature = np.interp(step, [0, max(self.steps - 1, 1)], self.ends)
        return softmax(np.array(self.state) / temperature)

    def learn(self, signal, correct):
        for k in np.unique(self.drawn):
            mean_signal = float(np.mean(np.asarray(signal)[self.drawn == k]))
            self.state[k] = self.alpha * mean_signal + (1 - self.alpha) * self.state[k]
        return super().learn(signal, correct)


class MixedSuccess(Curriculum):
    """`trace`, Table 1, difficulty-aware sampling: a bucket is drawn in proportion to the mean of f
    (1 - f) over its problems, where f is a problem's failure rate in probes. Raises ValueError for
    difficulties of another kind."""

    def __init__(self, problems, difficulty, *data):
        super().__init__(problems, difficulty, *data)
        variances = difficulty * (1 - difficulty)
        if np.min(variances) < 0 or not np.any(variances):
            raise ValueError(
                "mixed success needs failure rates, some of them between 0 and 1: "
                "name a run of probes"
            )
        signal = np.array([variances[members].mean() for members in self.members])
        self.share = signal / signal.sum()

    def probabilities(self, step: int) -> np.ndarray:
        return self.share


class EasyToHard(Curriculum):
    """`dense`, Section 7: the hand-designed order with which a learned bandit should be compared.
    There is one stage for each bucket, of equal length, and the easiest bucket comes first."""

    def probabilities(self, step: int) -> np.ndarray:
        return np.eye(self.count)[step * self.count // self.steps]


class ShortToLong(EasyToHard):
    """`program`: a curriculum over the length of programs. A problem of n numbers needs n - 1
    operations. There is one stage for each bucket, and the shortest programs come first."""

    count = 2

    def __init__(self, problems, difficulty, *data):
        super().__init__(problems, np.array([len(problem.nums) for problem in problems]), *data)


class Predicted(Curriculum):
    """Predicts a problem's success while training goes on, for curricula that choose by it.

    The prediction is a ridge regression of the share of correct rollouts on the count of numbers,
    the logarithm of the count of solutions, and the operators needed. An observation from `memory`
    updates ago has the weight 1/e. The state holds the sums of the regression. Before anything is
    observed, every prediction is one half."""

    memory = 20.0  # updates
    width = 5  # features of a problem
    predicted: np.ndarray  # of the problems that were drawn last

    def __init__(self, *data):
        super().__init__(*data)
        self.state = [0.0] * (self.width * self.width + self.width)

    def predict(self, features: np.ndarray) -> np.ndarray:
        """The predicted share of correct rollouts, (problems,), from features, (problems,
        width)."""
        *squares, products = np.array(self.state).reshape(self.width + 1, self.width)
        return 0.5 + features @ np.linalg.solve(squares + np.eye(self.width), products)

    def learn(self, signal, correct):
        sums = np.concatenate(
            [self.drawn.T @ self.drawn, [self.drawn.T @ (np.asarray(correct) - 0.5)]]
        )
        self.state = (np.array(self.state) * exp(-1 / self.memory) + sums.ravel()).tolist()
        return {"predicted": float(self.predicted.mean())}

    def features(self, problems: Sequence[Problem]) -> np.ndarray:
        """The features from which success is predicted, (problems, width)."""
        counts, simplest = profiles(problems)
        sizes = [len(problem.nums) for problem in problems]
        return np.stack(
            [np.ones(len(sizes)), sizes, np.log(counts + 1), simplest == 1, simplest == 2], axis=1
        )


class MixedOnline(Predicted):
    """`trace`, Table 1, difficulty-aware sampling, with a success that is estimated while training
    goes on: a training problem of predicted success p is drawn in proportion to p (1 - p), from all
    of them. So no probes are needed, and the choice follows the policy."""

    # p and 1 - p are at least this, so that no problem is ruled out by the regression alone
    least = 0.02

    def draw(self, count: int, step: int) -> list[Problem]:
        rng = np.random.default_rng([self.seed, step])
        predicted = np.clip(self.predict(self.all_features), self.least, 1 - self.least)
        weight = predicted * (1 - predicted)
        chosen = rng.choice(len(self.problems), count, replace=False, p=weight / weight.sum())
        self.drawn = self.all_features[chosen]
        self.predicted = predicted[chosen]
        return [self.problems[i] for i in chosen]

    @cached_property
    def all_features(self) -> np.ndarray:
        return self.features(self.problems)


class Frontier(Predicted):
    """`dense`, Section 7: new problems at the edge of what the policy can solve at present.

    For each update, `candidates` times as many problems are drawn as it needs, and those whose
    predicted success is nearest to one half are used. They have as many numbers as the training
    problems and come from the same ranges. Raises ValueError if too few problems in these ranges
    are solvable."""

    candidates = 20
    rounds = 50  # of drawing new problems for one update, before an error is raised

    def __init__(self, *data):
        super().__init__(*data)
        self.lengths = sorted({len(problem.nums) for problem in self.problems})
        numbers = [n for problem in self.problems for n in problem.nums]
        targets = [problem.target for problem in self.problems]
        self.ranges = [
            range(int(min(values)), int(max(values)) + 1) for values in (numbers, targets)
        ]

    def draw(self, count: int, step: int) -> list[Problem]:
        rng = np.random.default_rng([self.seed, step])
        candidates = []
        quota = count * self.candidates
        for _ in range(self.rounds):
            if len(candidates) < quota:
                candidates += self.solvable(rng, 4 * quota)
        if len(candidates) < quota:
            numbers, targets = (
                f"from {bounds.start} to {bounds.stop - 1}" for bounds in self.ranges
            )
            found = (
                f"{len(candidates):,} of {self.rounds * 4 * quota:,} "
                f"with numbers {numbers} and targets {targets}"
            )
            raise ValueError(
                f"the frontier curriculum finds no problems: {found}, as in training, can be solved"
            )
        candidates = candidates[:quota]
        features = self.features(candidates)
        predicted = self.predict(features)
        nearest = np.argsort(abs(predicted - 0.5), kind="stable")[:count]
        self.drawn = features[nearest]
        self.predicted = predicted[nearest]
        return [candidates[i] for i in nearest]

    def solvable(self, rng: np.random.Generator, count: int) -> list[Problem]:
        """Draws `count` problems like the training problems, and returns the solvable ones in no
        evaluation set."""
        numbers, targets = self.ranges
        candidates = []
        for length in rng.choice(self.lengths, count).tolist():
            nums = rng.integers(numbers.start, numbers.stop, length).tolist()
            candidates.append(Problem(tuple(nums), int(rng.integers(targets.start, targets.stop))))
        held_out = keys("evaluation")
        counts = count_all(candidates)
        return [
            problem
            for problem, solutions in zip(candidates, counts, strict=True)
            if solutions and problem.key not in held_out
        ]


CURRICULA: dict[str, type[Curriculum]] = {
    "bandit": Bandit,
    "easy_to_hard": EasyToHard,
    "short_to_long": ShortToLong,
    "mixed": MixedSuccess,
    "mixed_online": MixedOnline,
    "frontier": Frontier,
}
