"""The agent's states and actions, valued by the solver: the material for preferences, distillation
and a learned value (paper `agent`)."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from lib.game import mdp
from lib.game.mdp import Action, State
from lib.game.problem import Problem
from lib.game.solver import levels

# problem (index), its group, the state, the solver's action
Met = tuple[int, str | None, State, Action | None]
# the tags that `lib.learn.search.sample_tags` draws in one state
Tags = Sequence[tuple[str, float, int]]
Draw = Callable[[list[State]], list[Any]]


def named(tags: Tags, state: State) -> list[Action]:
    """The legal actions that tags name in a state, each as often as it is named."""
    moves = [mdp.parse_action(text, state) for text, *_ in tags]
    return [move for move in moves if not isinstance(move, str)]


def played(
    problems: Sequence[Problem], draw: Draw, rng: random.Random
) -> tuple[list[Met], list[Tags]]:
    """The states of one game of each problem, including lost ones, and the tags that `draw` returns
    for them.

    A game continues with one of the different actions drawn, or with one more at random, until two
    numbers are left."""
    met = []
    tags = []
    level = [(i, mdp.initial(problem)) for i, problem in enumerate(problems)]
    groups = levels(problems)
    while level:
        level_tags = draw([state for _, state in level])
        met += [(i, groups[i], state, None) for i, state in level]
        tags += level_tags
        successors = []
        for (i, state), state_tags in zip(level, level_tags, strict=True):
            moves = [*dict.fromkeys(named(state_tags, state)), rng.choice(mdp.legal_actions(state))]
            successors.append((i, mdp.step(state, rng.choice(moves))))
        level = [(i, state) for i, state in successors if len(state.nums) > 2]
    return met, tags


def tried(
    met: Sequence[Met], tags: Sequence[Tags], rng: random.Random
) -> tuple[pd.DataFrame, list[State]]:
    """The actions of each state (those that its tags name, the solver's, and one more at random),
    and their successors.

    One row per action: state, problem, group, prompt, action, drawn (how often), solver (whether it
    is the solver's), and binary, its exact value Q_bin."""
    rows = []
    successors = []
    for i, ((problem, group, state, solution), state_tags) in enumerate(
        zip(met, tags, strict=True)
    ):
        moves = named(state_tags, state)
        for move in dict.fromkeys(
            filter(None, [*moves, solution, rng.choice(mdp.legal_actions(state))])
        ):
            successors.append(mdp.step(state, move))
            context = {
                "state": i,
                "problem": problem,
                "group": group,
                "prompt": mdp.render_state(state),
            }
            details = {
                "action": mdp.render_action(move),
                "drawn": moves.count(move),
                "solver": move == solution,
            }
            rows.append(context | details)
    return pd.DataFrame(rows).assign(binary=mdp.q_values(successors, "binary")), successors


def questions(actions: pd.DataFrame, successors: Sequence[State]) -> pd.DataFrame:
    """The successors of actions as questions, each once per problem: prompt, completion (the
    solver's answer), problem, left (the count of numbers) and at (the row of `actions`). A state of
    one number needs no question."""
    columns = {
        "prompt": [mdp.render_state(state, "value") for state in successors],
        "completion": [mdp.VERDICTS[solved] for solved in actions["binary"].astype(int)],
        "problem": actions["problem"],
        "left": [len(state.nums) for state in successors],
        "at": range(len(actions)),
    }
    table = pd.DataFrame(columns)
    return table[table["left"] > 1].drop_duplicates(["problem", "prompt"])


def summary(actions: pd.DataFrame, tags: Sequence[Tags]) -> dict[str, float]:
    """How good the policy is that drew the tags: states; actions sampled; their tokens; rejected,
    the share that does not name a legal action; and the share of the other actions that keeps a
    solution open."""
    sampled = sum(map(len, tags))
    legal = int(actions["drawn"].sum())
    return {
        "step": 0,
        "states": len(tags),
        "sampled": sampled,
        "tokens": sum(tokens for state_tags in tags for *_, tokens in state_tags),
        "rejected": 1 - legal / sampled,
        "keeps a solution open": float((actions["drawn"] * actions["binary"]).sum())
        / max(legal, 1),
    }
