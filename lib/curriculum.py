"""Which problems come next: buckets by difficulty, and who shares an update's draws out among them.

`dense` is "Enhancing RLOO with Dense Symbolic Rewards and Bandit-Driven Curricula" (Sangpisit and Thawornbut), here its
Section 3.5. Its bandit learns from the very update whose problems it drew, without a lag.
"""

from collections.abc import Sequence

import numpy as np
from scipy.special import softmax

from lib.problem import Problem
from lib.solver import count_all


def solution_difficulty(problems: Sequence[Problem]) -> np.ndarray:
    """d(x) = -log(|S(x)| + 1): the fewer solutions, the harder. Shape (problems,)."""
    return -np.log(count_all(problems) + 1.0)


def buckets(difficulty: np.ndarray, count: int, seed: int) -> np.ndarray:
    """The bucket of each problem, 0 (easiest) to count - 1, all equally large but for one problem.

    Quantiles of the rank, where equally difficult problems stand in random order: solution counts take few values, and
    plain quantiles of them would leave buckets empty.
    """
    order = np.lexsort((np.random.default_rng(seed).random(len(difficulty)), difficulty))
    rank = np.empty(len(difficulty), int)
    rank[order] = np.arange(len(difficulty))
    return rank * count // max(len(difficulty), 1)


class Curriculum:
    """Draws a bucket for each problem of an update, then a problem of that bucket.

    A subclass says by `probabilities(step)` how the `steps` updates of a run share their draws out among the buckets.
    Draws depend on the seed, the step and `state` alone, which a checkpoint keeps. Raises ValueError for fewer problems
    than buckets.
    """

    def __init__(self, problems: Sequence[Problem], difficulty: np.ndarray, steps: int, seed: int, count: int = 6):
        if not 1 <= count <= len(problems):
            raise ValueError(f"{len(problems)} problems do not fill {count} buckets")
        self.problems, self.steps, self.seed, self.count = problems, steps, seed, count
        self.state: list[float] = []  # what was learned
        bucket = buckets(difficulty, count, seed)
        self.members = [np.flatnonzero(bucket == k) for k in range(count)]

    def probabilities(self, step: int) -> np.ndarray:
        raise NotImplementedError

    def draw(self, count: int, step: int) -> list[Problem]:
        """The problems of update `step` (from 0), none twice unless its bucket is too small."""
        rng = np.random.default_rng([self.seed, step])
        self.shares = self.probabilities(step)
        self.drawn = rng.choice(self.count, count, p=self.shares)
        chosen = np.empty(count, int)
        for k, members in enumerate(self.members):
            mine = self.drawn == k
            chosen[mine] = rng.choice(members, mine.sum(), replace=mine.sum() > len(members))
        return [self.problems[i] for i in chosen]

    def learn(self, signal: Sequence[float]) -> dict[str, float]:
        """Take the mean |advantage| of each problem drawn last; returns how probable each bucket was, for the log."""
        return {f"bucket{k}": float(share) for k, share in enumerate(self.shares)}


class Bandit(Curriculum):
    """`dense`, Eq. 7: p(k) = softmax(Q / temperature)_k, Q_k <- alpha l_k + (1 - alpha) Q_k from Q = 0, where l_k is
    the mean |advantage| over the problems drawn from bucket k; a bucket that was not drawn keeps its Q.

    final_temperature: the temperature falls linearly to it over the run (0: it stays). Raises ValueError unless
    0 < alpha <= 1 and the temperatures are positive.
    """

    def __init__(self, *data, count=6, alpha=0.5, temperature=1.0, final_temperature=0.0):
        if not (0 < alpha <= 1 and temperature > 0 and final_temperature >= 0):
            raise ValueError(f"impossible bandit: alpha={alpha}, temperatures {temperature}, {final_temperature}")
        super().__init__(*data, count=count)
        self.alpha, self.ends = alpha, (temperature, final_temperature or temperature)
        self.state = [0.0] * count

    def probabilities(self, step: int) -> np.ndarray:
        temperature = np.interp(step, [0, max(self.steps - 1, 1)], self.ends)
        return softmax(np.array(self.state) / temperature)

    def learn(self, signal: Sequence[float]) -> dict[str, float]:
        for k in np.unique(self.drawn):
            level = float(np.mean(np.asarray(signal)[self.drawn == k]))
            self.state[k] = self.alpha * level + (1 - self.alpha) * self.state[k]
        return super().learn(signal)


class EasyToHard(Curriculum):
    """A hand-designed order: the run is cut into as many stages as there are buckets, the easiest first."""

    def probabilities(self, step: int) -> np.ndarray:
        return np.eye(self.count)[min(step * self.count // self.steps, self.count - 1)]


class MixedSuccess(Curriculum):
    """`trace`, Table 1, difficulty-aware sampling: prompts of mixed success can expand coverage without other rewards.

    A bucket is drawn in proportion to the mean of f (1 - f) over its problems, with f the failure rate in probes: what
    always or never succeeds gives groups without signal. Difficulties that are no failure rates raise ValueError.
    """

    def __init__(self, problems, difficulty, *data, count=6):
        super().__init__(problems, difficulty, *data, count=count)
        mixed = difficulty * (1 - difficulty)
        if np.min(mixed) < 0 or not np.any(mixed):
            raise ValueError("mixed success needs failure rates, some of them between 0 and 1: name a run of probes")
        signal = np.array([mixed[members].mean() for members in self.members])
        self.share = signal / signal.sum()

    def probabilities(self, step: int) -> np.ndarray:
        return self.share


CURRICULA: dict[str, type[Curriculum]] = {"bandit": Bandit, "easy_to_hard": EasyToHard, "mixed": MixedSuccess}
