"""What the agent's games are paid, and the exact value and gradient of objectives over all games
of a problem.

A game of n numbers ends in one of three ways: won; finished but wrong; or with a tag that names no
legal action, after j legal ones. Every finished game consists of n - 1 legal actions and uses
exactly the problem's numbers. So what a reward pays for form, for the right numbers or for legal
steps is one constant over finished games. Divided by the lead of a won game over a wrong one,
every such reward pays

    1 if won, minus a fine f_j if an illegal tag follows j legal actions,

up to a constant, which moves no gradient. Such rewards differ in their fines alone (`fines`).
Potential-based shaping by the solver's value telescopes: a game earns a constant more, whatever it
does. A reward can do more than fine only if it looks at the expression that was built (closeness
of trees) or at the states on the way (progress, action values).

What a state's successors earn is known without reading states from which the target is out of
reach; rewards that pay for nothing else (STEP_REWARDS) are as cheap as success itself, for three
and for four numbers. END_REWARDS need every legal action of every state: 19 states for a problem
of three numbers and some 400 of four.

The rewards themselves are in lib/game/payments.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import torch

from lib.game import mdp
from lib.game.mdp import Action, State
from lib.game.payments import STEP_REWARDS, End, paid
from lib.game.problem import Problem
from lib.learn.exact import Tree, move_chances, open_tree, probabilities, values

SMALL = 1e-30  # below it, a probability counts as 0 in a logarithm

# --- all games of a problem -----------------------------------------------------------------------


@dataclass(frozen=True)
class Games:
    """All games of problems. states: each once. moves: every legal action of each state, as (index
    of the state, action). ends: of each problem. paths: the moves of each end, (problems, ends,
    actions), and stops: the state of its illegal tag, (problems, ends). In `paths`, len(moves)
    stands for no action and len(moves) + 1 for no end; in `stops`, len(states) for no illegal tag.
    """

    states: list[State]
    moves: list[tuple[int, Action]]
    ends: list[list[End]]
    paths: torch.Tensor
    stops: torch.Tensor


def open_games(problems: Sequence[Problem]) -> Games:
    """All games of the problems. Equal states are read once; games that reach them by other
    actions are other ends, since they build other expressions."""
    states: dict[tuple, State] = {}
    moves: dict[tuple[tuple, Action], None] = {}
    found = [_every_end(problem, states, moves) for problem in problems]
    place = {key: i for i, key in enumerate(states)}
    move_place = {move: j for j, move in enumerate(moves)}
    counts = dict(zip(states, mdp.count_solutions([*states.values()]).tolist(), strict=True))

    ends = []
    most_ends = max(map(len, found))
    most_actions = max(len(problem.nums) for problem in problems) - 1
    paths = torch.full((len(found), most_ends, most_actions), len(moves))
    stops = torch.full((len(found), most_ends), len(states))
    for i, (problem, some) in enumerate(zip(problems, found, strict=True)):
        ends.append([])
        paths[i, len(some) :] = len(moves) + 1
        for e, (history, passed, illegal) in enumerate(some):
            before = passed[:-1]
            for step, move in enumerate(zip(before, history, strict=True)):
                paths[i, e, step] = move_place[move]
            if illegal:
                stops[i, e] = place[passed[-1]]
            of_states = tuple(_count(key, counts) for key in passed[1:])
            ends[-1].append(End(problem, history, of_states, illegal))
    numbered = [(place[key], move) for key, move in moves]
    return Games([*states.values()], numbered, ends, paths, stops)


def _every_end(problem: Problem, states: dict, moves: dict) -> list[tuple]:
    """(history, keys of the states passed, whether an illegal tag follows) of each end of a
    problem's games. Enters the states that are read and their moves into `states` and `moves`."""
    ends = []
    open_: list[tuple] = [(mdp.initial(problem), (mdp.initial(problem).key,))]
    while open_:
        state, passed = open_.pop()
        ends.append((state.history, passed, not state.terminal))
        if state.terminal:
            continue
        states.setdefault(state.key, State(*state.key))
        for move in mdp.legal_actions(state):
            moves.setdefault((state.key, move))
            successor = mdp.step(state, move)
            open_.append((successor, (*passed, successor.key)))
    return ends


def _count(key: tuple, counts: dict[tuple, int]) -> int:
    """The number of solutions of a state: of a finished game it is 1 if the target was reached,
    else 0."""
    nums, target = key
    return counts[key] if len(nums) > 1 else int(nums == (target,))


def end_chances(games: Games, chances: torch.Tensor) -> torch.Tensor:
    """The probability of each end, (problems, ends) float64, differentiable; they sum to 1, and
    places without an end have 0. `chances`: pi of each move, (moves,)."""
    source = torch.tensor([i for i, _ in games.moves], device=chances.device)
    illegal = 1 - chances.new_zeros(len(games.states)).index_add(0, source, chances)
    none = chances.new_tensor([1.0, 0.0])
    reached = torch.cat([chances, none])[games.paths].prod(-1)
    return reached * torch.cat([illegal, none[:1]])[games.stops]


def game_chances(model, tokenizer, games: Games) -> torch.Tensor:
    """`end_chances` under a policy, (problems, ends) float64, differentiable."""
    pairs = [(games.states[i], move) for i, move in games.moves]
    return end_chances(games, probabilities(model, tokenizer, pairs))


# --- rewards --------------------------------------------------------------------------------------


def payoffs(games: Games, reward: str) -> torch.Tensor:
    """What each end is paid, (problems, ends) float64, and 0 where there is none."""
    result = torch.zeros(games.stops.shape, dtype=torch.float64, device=games.stops.device)
    for i, ends in enumerate(games.ends):
        of_ends = [paid(end, reward) for end in ends]
        result[i, : len(ends)] = torch.tensor(of_ends, dtype=torch.float64)
    return result


def step_payoffs(tree: Tree, reward: str) -> torch.Tensor:
    """What each move of a tree is paid by a reward of STEP_REWARDS, (moves,) float64. Moves that
    are not in the tree put the target out of reach, and earn nothing."""
    successors = [mdp.step(tree.states[i], move) for i, move, _ in tree.moves]
    left = np.array([len(state.nums) for state in successors], int)
    counts = mdp.count_solutions(successors)
    return torch.tensor(STEP_REWARDS[reward](counts, left), dtype=torch.float64)


def fines(problem: Problem, reward: str) -> list[float] | None:
    """What an illegal tag costs after j = 0, 1, ... legal actions, f_j in units of the lead of a
    won game over a wrong one. None if the reward does not pay all games alike that are won, that
    are wrong or that end illegally after j actions: then it is more than a fine. The problem must
    have both a solution and a wrong game."""
    [ends] = open_games([problem]).ends
    kinds: dict[tuple, set[float]] = {}  # what each kind of end is paid
    for end in ends:
        kind = ("illegal", len(end.history)) if end.illegal else ("won", end.won)
        kinds.setdefault(kind, set()).add(round(paid(end, reward), 9))
    if any(len(some) > 1 for some in kinds.values()):
        return None
    [won] = kinds["won", True]
    [wrong] = kinds["won", False]
    stopped = [kinds["illegal", j].pop() for j in range(len(problem.nums) - 1)]
    return [(wrong - earned) / (won - wrong) for earned in stopped]


# --- objectives -----------------------------------------------------------------------------------

BEST_OF = {"expected": 1, "pass2": 2, "pass4": 4, "pass16": 16}
UP_TO = {"upto3": 3, "upto15": 15, "log": inf}
OBJECTIVES = [*BEST_OF, *UP_TO]


def of_success(success: torch.Tensor, objective: str) -> torch.Tensor:
    """The objective of each problem's success p, with its shape.

    passk is 1 - (1 - p)^k. uptoT is the sum of pass@j / j over j = 1 ... T, with the slope (1 - (1
    - p)^T) / p: from the expected reward (T = 1) to log p (all j, up to a constant). Of the
    families between these two we take the one that groups of T + 1 sampled games estimate without
    bias (`lib.learn.losses.max_rl`). Unlike pass@k it never lets go of a problem: its slope is at
    least 1."""
    if objective in BEST_OF:
        return 1 - (1 - success) ** BEST_OF[objective]
    if UP_TO[objective] == inf:
        return success.log()
    j = torch.arange(1, UP_TO[objective] + 1, dtype=success.dtype, device=success.device)
    return ((1 - (1 - success[..., None]) ** j) / j).sum(-1)


def best_of(chances: torch.Tensor, pay: torch.Tensor, k: int) -> torch.Tensor:
    """The expected largest reward of k independent games, (problems,), differentiable. It needs
    the distribution F of the reward: E max = v_m - sum over i < m of (v_{i+1} - v_i) F(v_i)^k,
    over the values v_1 <= ... <= v_m. chances and pay: (problems, ends); an end of probability 0
    changes nothing."""
    ordered, at = pay.sort(-1)
    below = chances.gather(-1, at).cumsum(-1)[..., :-1]
    return ordered[..., -1] - (ordered.diff(dim=-1) * below**k).sum(-1)


def entropy(chances: torch.Tensor) -> torch.Tensor:
    """The entropy in nats of how a game goes, (problems,): by the chain rule, the sum over states
    of the chance to be there times the entropy of the action taken, where all illegal tags count
    as one."""
    return -(chances * chances.clamp(min=SMALL).log()).sum(-1)


def divergence(chances: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """KL of how a game goes from how it goes under a reference policy, in nats, (problems,). Since
    all illegal tags count as one, it is a lower bound of the KL of the texts."""
    ratio = chances.clamp(min=SMALL).log() - reference.clamp(min=SMALL).log()
    return (chances * ratio).sum(-1)


def aims(
    model,
    tokenizer,
    problems: Sequence[Problem],
    objective: str = "expected",
    reward: str = "outcome",
    entropy_coef: float = 0.0,
    kl_coef: float = 0.0,
    reference=None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What training maximises, of each problem, differentiable; and each problem's success. Both
    (problems,) float64.

    passk of a graded reward is the expected largest reward of k games. kl_coef: of the divergence
    from the policy `reference`. Raises ValueError for an objective that is a function of success
    alone with another reward, and, without a bonus or a price, for best of k with a reward that is
    summed over steps, of which only the mean is computed then.
    """
    if reward != "outcome" and objective not in BEST_OF:
        remedy = "use the reward 'outcome'"
        raise ValueError(f"objective {objective!r} is a function of success: {remedy}")
    if reward in STEP_REWARDS and not (entropy_coef or kl_coef):
        tree = open_tree(problems)
        chances = move_chances(model, tokenizer, tree)
        success = values(tree, chances)[tree.roots]
        if reward == "outcome":
            return of_success(success, objective), success.detach()
        if objective != "expected":
            remedy = "use the objective 'expected'"
            raise ValueError(f"{objective!r} is not computed of the reward {reward!r}: {remedy}")
        pay = step_payoffs(tree, reward).to(chances.device)
        return values(tree, chances, pay)[tree.roots], success.detach()
    games = open_games(problems)
    chances = game_chances(model, tokenizer, games)
    success = (chances * payoffs(games, "outcome")).sum(-1)
    if reward == "outcome":
        aim = of_success(success, objective)
    else:
        aim = best_of(chances, payoffs(games, reward), BEST_OF[objective])
    if entropy_coef:
        aim = aim + entropy_coef * entropy(chances)
    if kl_coef:
        with torch.no_grad():
            before = game_chances(reference, tokenizer, games)
        aim = aim - kl_coef * divergence(chances, before)
    return aim, success.detach()
