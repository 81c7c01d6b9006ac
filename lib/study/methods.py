"""data/methods.csv: how each method is written and drawn, what trained it, and which policy it started from.

A search system's name is its policy's name, a space and a budget (`preference/agent_soft 16/16`).
"""

from functools import cache

import pandas as pd

from lib.files import DATA


@cache
def methods() -> pd.DataFrame:
    """The listed methods in their order: label, colour, marker, study, trainer and start ("" for none) by name."""
    return pd.read_csv(DATA / "methods.csv").fillna({"start": ""}).set_index("method")


def policy_of(system: str) -> str:
    """The policy behind a method or a search system."""
    return system.partition(" ")[0]


def trainer(method: str) -> str:
    """What trained a policy, "rloo" also for a mixture of its weights."""
    policy = policy_of(method)
    return methods()["trainer"].get(policy, policy.partition("/")[0])


def root(method: str) -> str:
    """The policy at the beginning of a method's line: sft/free for rloo/program, which starts from sft/program.

    "" for a method that is not listed: its runs count as paired by their seeds.
    """
    starts, policy = methods()["start"], policy_of(method)
    while start := starts.get(policy, ""):
        policy = start
    return policy if policy in starts else ""
