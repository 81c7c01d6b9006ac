"""The agent's game without sampling: a policy's success, summed over all games of a problem.

The probability that a policy at temperature 1, without top-k or top-p, solves a problem needs one
forward pass per state:

    V(s) = sum over a in A(s) of pi(a | s) V(s'),   V = 1 if the target is the only number left,

where pi(a | s) is the product of the token probabilities of the action's tag and of the end token
after it. The tag of + and * may have its operands in either order, and both count. Everything else
counts as lost, including rare spellings that the game would accept (other tokens with the same
text, or a fraction that is not reduced), so V is a lower bound of the success of sampled games.

Equal states are read once. States from which the target cannot be reached are never read: V is 0
there, and the solver finds them. The k games of a problem are independent, so pass@k is exactly 1 -
(1 - V)^k."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import comb, inf
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from lib.game import mdp
from lib.game.expression import render
from lib.game.mdp import Action, State
from lib.game.problem import Problem
from lib.learn import losses
from lib.learn.generation import Sampling, generate_shared, log_prob

TOKENS = 2048  # tokens read at once, padding included: about what fits into a core's cache


# --- the tree -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tree:
    """The states of problems from which the target can be reached, and the actions that lead to
    such states.

    moves: (state, action, successor), where both states are indices of `states`, or the successor
    is `won`. roots: the first state of each problem, or len(states) if the problem has no solution.
    """

    problems: Sequence[Problem]
    states: list[State]
    moves: list[tuple[int, Action, int]]
    roots: list[int]

    @cached_property
    def onward(self) -> dict[int, list[int]]:
        """The moves of each state, as indices of `moves`."""
        indices = defaultdict(list)
        for j, (i, _, _) in enumerate(self.moves):
            indices[i].append(j)
        return dict(indices)

    @property
    def won(self) -> int:
        return len(self.states) + 1


def open_tree(problems: Sequence[Problem]) -> Tree:
    """The part of the problems' game trees in which the target can be reached, with equal states
    merged."""
    states: dict[tuple, State] = {}
    # the keys of both states, and the action between them
    steps: list[tuple[tuple, Action, tuple]] = []
    level = _solvable([mdp.initial(problem) for problem in problems])
    while level:
        states |= level
        children = [
            (key, move, mdp.step(state, move))
            for key, state in level.items()
            for move in mdp.legal_actions(state)
        ]
        solvable = _solvable([child for *_, child in children])
        steps += [(key, move, child.key) for key, move, child in children if child.key in solvable]
        # Problems of three and of four numbers can share a state, but not its level
        level = {
            key: state
            for key, state in solvable.items()
            if not state.terminal and key not in states
        }
    index = {key: i for i, key in enumerate(states)}
    moves = [
        (index[key], move, index.get(child_key, len(states) + 1)) for key, move, child_key in steps
    ]
    roots = [index.get(mdp.initial(problem).key, len(states)) for problem in problems]
    return Tree(problems, list(states.values()), moves, roots)


def _solvable(states: Sequence[State]) -> dict[tuple, State]:
    """The states from which the target can be reached, each once and without its history, by their
    keys."""
    counts = mdp.count_solutions(states)
    return {
        state.key: State(*state.key) for state, count in zip(states, counts, strict=True) if count
    }


# --- the policy's probabilities -------------------------------------------------------------------


def tags(tokenizer, move: Action) -> list[tuple[int, ...]]:
    """The token ids of the one or two tags that name an action (the operands of + and * can be
    swapped), including the end token."""
    swapped = move._replace(a=move.b, b=move.a) if move.op in "+*" else move
    texts = dict.fromkeys(map(mdp.render_action, (move, swapped)))
    return [
        (*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id)
        for text in texts
    ]


def read(
    model, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[tuple[int, ...]]]
) -> torch.Tensor:
    """log pi of each text (token ids) after its prompt, (all texts,) in order, differentiable.

    A prompt and the tokens that its texts share are read once, as a tree of tokens in which each
    token attends to those on its own path."""
    packed = [
        _Packed(prompt, prompt_texts) for prompt, prompt_texts in zip(prompts, texts, strict=True)
    ]
    order = sorted(range(len(packed)), key=lambda i: len(packed[i].tokens))
    batches: list[list[int]] = []
    for i in order:
        if not batches or (len(batches[-1]) + 1) * len(packed[i].tokens) > TOKENS:
            batches.append([])
        batches[-1].append(i)
    logps: dict[int, torch.Tensor] = {}  # of the texts of each prompt
    for batch in batches:
        logps |= zip(batch, _read_packed(model, [packed[i] for i in batch]), strict=True)
    return torch.cat([logps[i] for i in range(len(packed))])


class _Packed:
    """A prompt and the tree of its texts: the tokens, and the token before each on its path; the
    edges (token, next token); and the edges of each text, as (text, edge)."""

    def __init__(self, prompt: Sequence[int], texts: Sequence[tuple[int, ...]]):
        self.tokens = list(prompt)
        self.before = list(range(-1, len(prompt) - 1))
        self.texts = len(texts)
        self.taken = []
        edges: dict[tuple[int, int], int] = {}
        nodes: dict[int, int] = {}  # edge -> the token to which it leads
        for text, ids in enumerate(texts):
            node = len(prompt) - 1
            for i, token in enumerate(ids):
                edge = edges.setdefault((node, token), len(edges))
                self.taken.append((text, edge))
                if i + 1 < len(ids):  # the last token is predicted, and never read
                    if edge not in nodes:
                        nodes[edge] = len(self.tokens)
                        self.tokens.append(token)
                        self.before.append(node)
                    node = nodes[edge]
        self.edges = list(edges)

    def seen(self, width: int) -> np.ndarray:
        """What each token attends to, (width, width): itself and its path. Padding attends only to
        itself."""
        result = np.eye(width, dtype=bool)
        for i, before in enumerate(self.before):
            if before >= 0:
                result[i] |= result[before]
        return result


def _read_packed(model, packed: list[_Packed]) -> list[torch.Tensor]:
    """log pi of the texts of each prompt, read as one batch."""
    width = max(len(item.tokens) for item in packed)
    device = model.device
    ids = [[*item.tokens, *[0] * (width - len(item.tokens))] for item in packed]
    mask = torch.from_numpy(np.stack([item.seen(width) for item in packed])).to(device)
    hidden = model.base_model(
        torch.tensor(ids, device=device),
        attention_mask=mask[:, None],
        position_ids=mask.sum(-1) - 1,
        use_cache=False,
    ).last_hidden_state
    row = torch.tensor([i for i, item in enumerate(packed) for _ in item.edges], device=device)
    position, token = torch.tensor(
        [edge for item in packed for edge in item.edges], device=device
    ).T
    edge_logps = log_prob(model.get_output_embeddings()(hidden[row, position]), token)
    result = []
    for item, logps in zip(
        packed, edge_logps.split([len(item.edges) for item in packed]), strict=True
    ):
        text, edge = torch.tensor(item.taken, device=device).T
        result.append(logps.new_zeros(item.texts).index_add(0, text, logps[edge]))
    return result


def _read_states(
    model, tokenizer, requests: Iterable[tuple[int, State, tuple[int, ...]]]
) -> tuple[torch.Tensor, ...]:
    """log pi of texts (token ids) after their states, and the number that came with each text, both
    (texts,). The texts of one state are read together."""
    texts: dict[tuple, list[tuple[int, ...]]] = defaultdict(list)
    numbers: dict[tuple, list[int]] = defaultdict(list)
    for number, state, ids in requests:
        texts[state.key].append(ids)
        numbers[state.key].append(number)
    device = model.device
    if not texts:  # no game is left to learn from, or no problem has a solution
        return torch.zeros(0, device=device), torch.zeros(0, dtype=torch.long, device=device)
    prompts = tokenizer([mdp.render_state(State(*key)) for key in texts]).input_ids
    logps = read(model, prompts, list(texts.values()))
    in_order = list(chain(*numbers.values()))
    return logps, torch.tensor(in_order, dtype=torch.long, device=device)


def probabilities(model, tokenizer, pairs: Sequence[tuple[State, Action]]) -> torch.Tensor:
    """pi(a | s) of each (state, action), float64, differentiable. The actions of one state are read
    together."""
    moves = {move for _, move in pairs}
    move_tags = {move: tags(tokenizer, move) for move in moves}
    requests = ((i, state, ids) for i, (state, move) in enumerate(pairs) for ids in move_tags[move])
    logps, indices = _read_states(model, tokenizer, requests)
    chances = logps.double().exp()
    return chances.new_zeros(len(pairs)).index_add(0, indices, chances)


# --- values ---------------------------------------------------------------------------------------


def values(tree: Tree, chances: torch.Tensor, pay: torch.Tensor | None = None) -> torch.Tensor:
    """V of every state of the tree, then those of a lost and of a won one, 0 and 1; float64,
    differentiable. `chances`: pi of each move. `pay`: what each move earns, (moves,), in place of 1
    for a game that is won; V is then the expected sum of what is still earned, and 0 at the end."""
    result = chances.new_zeros(len(tree.states) + 2)
    result[tree.won] = 1 if pay is None else 0
    device = chances.device
    starts = [start for start, _, _ in tree.moves]
    ends = [end for _, _, end in tree.moves]
    numbers = [len(tree.states[start].nums) for start in starts]
    source = torch.tensor(starts, device=device)
    successor = torch.tensor(ends, device=device)
    counts = torch.tensor(numbers, device=device)
    for count in counts.unique().tolist():  # states with the fewest numbers first
        rows = (counts == count).nonzero().squeeze(-1)
        then = result[successor[rows]] if pay is None else result[successor[rows]] + pay[rows]
        result = result.index_add(0, source[rows], chances[rows] * then)
    return result


def move_chances(model, tokenizer, tree: Tree) -> torch.Tensor:
    """pi(a | s) of each move of the tree, (moves,) float64, differentiable."""
    return probabilities(model, tokenizer, [(tree.states[i], move) for i, move, _ in tree.moves])


def success(model, tokenizer, tree: Tree) -> torch.Tensor:
    """The probability that one game solves each problem, V of its first state, (problems,) float64,
    differentiable."""
    return values(tree, move_chances(model, tokenizer, tree))[tree.roots]


def solutions(tree: Tree, chances: Sequence[float], i: int) -> dict[str, float]:
    """The solutions of problem i as expressions, with the probability that a game builds each, by
    any order of its operations, the most probable first."""
    totals: dict[str, float] = defaultdict(float)
    games: list[tuple[int, tuple[Action, ...], float]] = [(tree.roots[i], (), 1.0)]
    while games:
        state, history, chance = games.pop()
        if state == tree.won:
            built = mdp.expression(tree.problems[i], history)
            totals[render(built)] += chance
        for j in tree.onward.get(state, ()):
            _, move, successor = tree.moves[j]
            games.append((successor, (*history, move), chance * chances[j]))
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def evaluate(model, tokenizer, problems: Sequence[Problem], together: int = 100) -> pd.DataFrame:
    """One row per problem. numbers: how many it has. success: exact, float64. solutions: how many
    there are. used: the exponential of the entropy of the solution that a won game has built.
    `together` problems are read at a time."""
    rows = []
    for start in range(0, len(problems), together):
        tree = open_tree(problems[start : start + together])
        with torch.inference_mode():
            chances = move_chances(model, tokenizer, tree)
            problem_chances = values(tree, chances)[tree.roots].tolist()
            chance_list = chances.tolist()
        for i, (problem, chance) in enumerate(zip(tree.problems, problem_chances, strict=True)):
            shares = np.array([*solutions(tree, chance_list, i).values()]) / (chance or 1)
            some = shares[shares > 0]
            used = np.exp(-(some * np.log(some)).sum()) if chance else 0.0
            rows.append((len(problem.nums), chance, len(shares), used))
    return pd.DataFrame(rows, columns=["numbers", "success", "solutions", "used"])


def exact_pass_at_k(success: np.ndarray, k) -> np.ndarray:
    """1 - (1 - p)^k for each p of `success`, accurate also if p or 1 - p is small; k is broadcast
    against it."""
    return -np.expm1(np.asarray(k) * np.log1p(-np.minimum(np.asarray(success, float), 1 - 1e-15)))


# --- objectives, and their estimators from samples ------------------------------------------------

OBJECTIVES = {"expected": 1, "pass4": 4, "pass16": 16, "log": inf}


def worth(success: torch.Tensor, k: float) -> torch.Tensor:
    """1 - (1 - p)^k, the probability that at least one of k games is won. For infinite k it is log
    p, whose gradient is the sum over all k of 1/k times the gradient of pass@k."""
    return success.log() if k == inf else 1 - (1 - success) ** k


def weight(success: torch.Tensor, k: float) -> torch.Tensor:
    """The derivative of `worth`: the weight that the gradient of a problem's success gets."""
    return 1 / success if k == inf else k * (1 - success) ** (k - 1)


# Advantages of games won (1) or lost (0). Argument and result are (groups, K); an update is the
# mean of A grad log pi.
ESTIMATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rloo": losses.leave_one_out,
    "grpo": losses.grpo,
    "pkpo": lambda won: losses.pass_at_k(won, 4),
    "maxrl": losses.max_rl,
    "fgrpo": lambda won: losses.f_grpo(won, won, gamma=1),
}


def expected_weight(estimator: str, success: torch.Tensor, group_size: int) -> torch.Tensor:
    """f(p), with the shape of `success`: the mean of an estimator over all groups of K games of a
    problem is f(p) grad p. The mean of grad log pi is grad log p over won games and -grad p / (1 -
    p) over lost ones, and an advantage depends only on the number c of games won, so f is a sum
    over c with binomial probabilities."""
    p = success.double().clamp(1e-15, 1 - 1e-15)
    total = torch.zeros_like(success, dtype=torch.float64)
    for c in range(group_size + 1):
        won = torch.tensor([[1.0] * c + [0.0] * (group_size - c)], dtype=torch.float64)
        [advantages] = ESTIMATORS[estimator](won)
        of_won = advantages[:c].sum() / p
        of_lost = advantages[c:].sum() / (1 - p)
        chance = comb(group_size, c) * p**c * (1 - p) ** (group_size - c)
        total += chance * (of_won - of_lost) / group_size
    return total


class Game(NamedTuple):
    """A sampled game: the token ids that were drawn in each state, and whether the game was won."""

    turns: list[tuple[State, tuple[int, ...]]]
    won: bool


def play(
    model, tokenizer, problems: Sequence[Problem], n: int, generator: torch.Generator
) -> list[list[Game]]:
    """Plays `n` games of each problem, with tags of at most 32 tokens. A tag that names no legal
    action ends a game."""
    games = [Game([], False) for _ in range(len(problems) * n)]
    active = [(i, mdp.initial(problems[i // n])) for i in range(len(games))]
    sampling = Sampling(max_tokens=32)
    draws = n
    while active:
        # all games of a problem begin in one state
        texts = [mdp.render_state(state) for _, state in active[::draws]]
        prompts = tokenizer(texts).input_ids
        eos = tokenizer.eos_token_id
        out = generate_shared(model, prompts, draws, sampling, eos, generator)
        next_active = []
        for (i, state), ids, finish in zip(active, out.ids, out.finish, strict=True):
            games[i].turns.append((state, tuple(ids)))
            move = mdp.parse_action(tokenizer.decode(ids[:-1]) if finish == "stop" else "", state)
            if isinstance(move, str):
                continue
            successor = mdp.step(State(*state.key), move)
            if successor.terminal:
                games[i] = games[i]._replace(won=successor.nums == (successor.target,))
            else:
                next_active.append((i, successor))
        active = next_active
        draws = 1
    return [games[i : i + n] for i in range(0, len(games), n)]


def game_logprobs(model, tokenizer, games: Sequence[Game]) -> torch.Tensor:
    """log pi of each game, which is the sum over its tags, (games,), differentiable."""
    requests = ((i, state, ids) for i, game in enumerate(games) for state, ids in game.turns)
    logps, indices = _read_states(model, tokenizer, requests)
    return logps.new_zeros(len(games)).index_add(0, indices, logps)
