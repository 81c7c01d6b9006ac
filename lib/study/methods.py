"""Reads data/methods.csv: each method's label, colour and marker, its trainer, and the policy that
it started from.

The name of a search system is the name of its policy, a space, and the settings of the search, such
as `preference/agent_soft 16/16`."""

from functools import cache

import pandas as pd

from lib.files import DATA


@cache
def methods() -> pd.DataFrame:
    """The methods of the file in their order, indexed by name, with the columns label, colour,
    marker, study, trainer and start ("" if there is none)."""
    return pd.read_csv(DATA / "methods.csv").fillna({"start": ""}).set_index("method")


def policy_of(system: str) -> str:
    """The policy behind a method or a search system."""
    return system.partition(" ")[0]


def rank(system: str) -> int:
    """The place of a method or a search system in the order of the file. Those that are not listed
    come last."""
    names = list(methods().index)
    policy = policy_of(system)
    return names.index(policy) if policy in names else len(names)


def is_search(system: str) -> bool:
    """Whether a name is that of a search system. The settings of a search contain its budget, such
    as "16/16"; a temperature, as in "rloo/sparse T0.8", is no search."""
    return "/" in system.partition(" ")[2]


def trainer(method: str) -> str:
    """The trainer of a policy, such as "sft". A mixture of the weights of two policies counts as
    "rloo"."""
    policy = policy_of(method)
    return methods()["trainer"].get(policy, policy.partition("/")[0])


def start_of(method: str) -> str:
    """The policy that a method's training started from, "" if there is none or the file does not
    list the method."""
    return methods()["start"].get(policy_of(method), "")


def root(method: str) -> str:
    """The first policy of the chain of starts that leads to a method.

    For example, it is sft/free for rloo/program, which starts from sft/program, which starts from
    sft/free. For a method that the file does not list it is "", and its runs count as paired by
    their seeds. Raises ValueError for a start that the file does not list, or that leads back to
    itself."""
    first = lineage(method)[-1]
    return first if first in methods()["start"] else ""


def lineage(method: str) -> list[str]:
    """A method's policy, the policy that it started from, the start of that one, and so on. Errors
    as in `root`."""
    starts = methods()["start"]
    chain = [policy_of(method)]
    while start := start_of(chain[-1]):
        if start in chain or start not in starts:
            why = "starts from itself" if start in chain else "is not a method of the file"
            raise ValueError(f"data/methods.csv: {start}, the start of {chain[-1]}, {why}")
        chain.append(start)
    return chain
