"""Which system a row of a table is about, as columns: a policy, and how its answers are drawn.

A policy at the usual temperature is a system, and so is a policy whose answers are drawn at another
temperature, or that plays the game of `agent` in a search. Each setting is a column of the tables
(the fields of `System`). The column `method` holds the name of the system, which this module makes
from the settings. Nothing reads the settings from a name: `of` gives the system that a name stands
for, and `columns` gives those of many names as a table.

data/methods.csv says of each policy its label, colour and marker, its trainer, and the policy that
it started from. data/systems.csv lists the systems that are no plain policies and that the claims
or the numbers of the papers name."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from functools import cache

import pandas as pd

from lib.files import DATA
from lib.game.verifiers import REJECTIONS

TEMPERATURE = 0.6  # at which answers and games are drawn, where a name says nothing else
# a search draws from so many likeliest tokens, and where the temperature is varied from more
TOP_K = 20
TOP_K_VARIED = 50


# The variant of the methods of the pretrained model. They are policies of their own: of another
# base model, trained from another start
PRETRAINED = "135M"


@dataclass(frozen=True)
class System:
    """A policy and how its answers, or its games, are drawn.

    policy: a name of data/methods.csv, or another without a space. temperature: of the samples.
    variant: what else tells its answers from the policy's samples, such as "8 + 8", half of them
    drawn from another policy. search: whether it searches. The other fields are those of a search
    (`lib.learn.settings.SearchSettings`); repeated says that each problem is searched several
    times, which makes single games a sample."""

    policy: str
    temperature: float = TEMPERATURE
    variant: str = ""
    search: bool = False
    beams: int = 0
    samples: int = 0
    top_p: float = 0.95
    top_k: int = TOP_K
    max_tokens: int = 32
    rerank: str = "none"
    weight: float = 1.0
    alpha: float = 0.2
    beta: float = 0.05
    cascade: str = ""
    redraws: int = 0
    repeated: bool = False

    @property
    def usual_temperature(self) -> float:
        """The temperature that the name leaves out. A single game that is played once is greedy."""
        single = self.search and self.samples == 1 and not self.cascade
        return 0.0 if single and not self.repeated else TEMPERATURE

    @property
    def budget(self) -> str:
        """Beams and samples, such as "16/16", or the stages of a cascade; "" without a search."""
        if not self.search:
            return ""
        return self.cascade or f"{self.beams}/{self.samples}"

    @property
    def value(self) -> str:
        """The value that guides a search, with its unusual weights, such as "+soft λ=4"."""
        guide = "" if self.rerank == "none" else f"+{self.rerank}"
        return " ".join(filter(None, [guide, *self._weights()]))

    @property
    def settings(self) -> str:
        """The settings as names print them, without the usual ones: "16/16 +soft T0.9 λ=4 sampled".
        "" for a policy whose answers are drawn at the usual temperature."""
        parts = [self.budget]
        if self.rerank != "none":
            parts.append(f"+{self.rerank}")
        if self.temperature != self.usual_temperature:
            parts.append(f"T{self.temperature:g}")
        if self.search:
            parts += self._tokens()
        parts += self._weights()
        if self.redraws:
            parts.append(f"redrawn={self.redraws}")
        if self.repeated:
            parts.append("sampled")
        parts.append(self.variant)
        return " ".join(filter(None, parts))

    @property
    def name(self) -> str:
        """The system in the column `method`: the policy, and the settings if there are any."""
        return f"{self.policy} {self.settings}".rstrip()

    def _tokens(self) -> list[str]:
        """How tokens are drawn, where it is unusual."""
        varied = self.temperature not in (0.0, TEMPERATURE)
        usual_top_k = TOP_K_VARIED if varied else TOP_K
        parts = []
        if self.top_k != usual_top_k:
            parts.append(f"top-k={self.top_k}")
        if self.top_p != System.top_p:
            parts.append(f"top-p={self.top_p:g}")
        if self.max_tokens != System.max_tokens:
            parts.append(f"cap={self.max_tokens}")
        return parts

    def _weights(self) -> list[str]:
        """The weights of a value, where they are unusual."""
        parts = []
        if self.weight != System.weight:
            parts.append(f"λ={self.weight:g}")
        if self.alpha != System.alpha:
            parts.append(f"α={self.alpha:g}")
        if self.beta != System.beta:
            parts.append(f"β={self.beta:g}")
        return parts


# sixteen games of sixteen samples, as most searches of the study
SIXTEEN = {"search": True, "beams": 16, "samples": 16}
_named: dict[str, System] = {}  # the systems whose names were given out, beside the listed ones
# the settings that tell one search of a run from another
SEARCH = ["beams", "samples", "temperature", "top_p", "top_k", "max_tokens"]
SEARCH += ["rerank", "weight", "alpha", "beta", "cascade", "redraws"]


@cache
def listed() -> dict[str, System]:
    """The systems of data/systems.csv by their names. An empty cell stands for the usual setting.
    Raises ValueError if a name is not the one that its settings make."""
    whole = dict.fromkeys(("beams", "samples", "top_k", "redraws"), "Int64")
    table = pd.read_csv(DATA / "systems.csv", dtype=whole)
    systems = {}
    for row in table.to_dict("records"):
        name = row.pop("system")
        given = {str(field): value for field, value in row.items() if pd.notna(value)}
        given["search"] = "search" in given
        given["repeated"] = "repeated" in given
        system = System(**given)
        if system.name != name:
            raise ValueError(f"data/systems.csv: the settings of {name!r} make {system.name!r}")
        systems[name] = system
    return systems


def named(system: System) -> str:
    """The name of a system, which `of` reads from now on. Raises ValueError if another system has
    this name."""
    name = system.name
    known = listed().get(name) or _named.setdefault(name, system)
    if known != system:
        differ = [field for field, value in asdict(known).items() if value != asdict(system)[field]]
        raise ValueError(f"two systems are called {name!r}; they differ in {', '.join(differ)}")
    return name


def search(policy: str, beams: int, samples: int, **settings) -> str:
    """The name of a search with this budget; `settings` are other fields of `System`."""
    return named(System(policy, search=True, beams=beams, samples=samples, **settings))


def variant(policy: str, what: str) -> str:
    """The name of what a policy gives in an unusual way, such as "one by one"."""
    return named(System(policy, variant=what))


def find(name: str) -> System | None:
    """The system that a name stands for. A name without a space is a policy. None for another name
    that neither `named` has given out nor data/systems.csv lists."""
    if " " not in name:
        return System(name)
    return listed().get(name) or _named.get(name)


def of(name: str) -> System:
    """The system that a name stands for, as in `find`. Raises LookupError if there is none."""
    if system := find(name):
        return system
    raise LookupError(
        f"{name!r} is no known system: list it in data/systems.csv, or make its name with "
        "lib.study.systems.named"
    )


def columns(names: Iterable[str]) -> pd.DataFrame:
    """The settings of systems: one row per name, with a column per field of `System`, and with its
    budget, value and settings as text."""
    unique = list(dict.fromkeys(names))
    rows = []
    for name in unique:
        system = of(name)
        texts = {"budget": system.budget, "value": system.value, "settings": system.settings}
        rows.append(asdict(system) | texts)
    index = pd.Index(unique, name="method", dtype="str")
    field_names = [field.name for field in fields(System)]
    return pd.DataFrame(rows, index, [*field_names, "budget", "value", "settings"])


def at_temperature(judged: pd.DataFrame) -> pd.DataFrame:
    """`judged` (a table of `judging.samples`), in which samples at unusual temperatures are a
    system of their own."""
    parts = []
    for _, rows in judged.groupby(["method", "temperature"], sort=False):
        system = System(rows["method"].iloc[0], float(rows["temperature"].iloc[0]))
        parts.append(pd.Series(named(system), rows.index))
    names = pd.concat(parts) if parts else judged["method"]
    return judged.assign(method=names)


def searches(games: pd.DataFrame) -> pd.DataFrame:
    """One row per search: the row of the game that the search itself scores best, with more
    columns. `games`: a table of `judging.games`.

    method: the name of the system. policy: what `games` calls method. settings: those that the name
    prints. pass@1: whether that game is a solution. any: whether at least one game of the search
    is. score: that of `agent`, Section 4.1, which is 1 for a solution, 0.1 for another finished
    game and 0 for none. rejected: the share of sampled action tags that name no legal action, and
    rejections their number. repeats: how many searches of the same problem there are."""
    games = _with_all_settings(games)
    run_columns = ["run", "seed", "set", *SEARCH]
    by_search = games.groupby([*run_columns, "problem", "sample"], sort=False)
    solved = by_search["correct"].transform("any").astype(float)
    repeats = games.groupby(run_columns)["sample"].transform("max") + 1
    best = games.assign(any=solved, repeats=repeats).query("rank == 0")
    correct = best["correct"].astype(float)
    finished = (correct == 0) & (best["status"] != "missing")
    rejections = best[list(REJECTIONS)].sum(axis=1)
    best = best.assign(
        **{"pass@1": correct},
        score=correct.mask(finished, 0.1),
        rejections=rejections,
        rejected=rejections / best["sampled"],
        policy=best["method"],
    )
    return _named_searches(best)


def _with_all_settings(games: pd.DataFrame) -> pd.DataFrame:
    """`games` with the columns that tables from before these settings lack, at their usual
    values."""
    missing = {}
    if "cascade" in games:
        missing["cascade"] = games["cascade"].fillna("")
    else:
        missing["cascade"] = ""
    if "redraws" in games:
        missing["redraws"] = games["redraws"].fillna(0).astype(int)
    if "top_k" not in games:
        usual = games["temperature"].isin([0.0, TEMPERATURE])
        missing["top_k"] = usual.map({True: TOP_K, False: TOP_K_VARIED})
    for setting in ("top_p", "max_tokens", "redraws"):
        if setting not in games:
            missing[setting] = getattr(System, setting)
    return games.assign(**missing)


def _named_searches(best: pd.DataFrame) -> pd.DataFrame:
    """Searches with the names of their systems in the column `method`, and their settings."""
    groups = best.groupby(["policy", *SEARCH, "repeats"], dropna=False, sort=False)
    found = [_search_of(row) for row in groups.head(1).to_dict("records")]
    names = pd.Series([named(system) for system in found], dtype="str")
    settings = pd.Series([system.settings for system in found], dtype="str")
    group = groups.ngroup().to_numpy()
    method = names.take(group).set_axis(best.index)
    return best.assign(method=method, settings=settings.take(group).set_axis(best.index))


def _search_of(row: dict) -> System:
    """The system of a search. Weights that it does not use are left at their usual values."""
    used = [setting for setting in SEARCH if setting not in ("weight", "alpha", "beta")]
    if row["rerank"] != "none":
        used.append("weight")
    if row["rerank"] == "soft":
        used += ["alpha", "beta"]
    options = {setting: row[setting] for setting in used}
    return System(row["policy"], search=True, repeated=bool(row["repeats"] > 1), **options)


@cache
def methods() -> pd.DataFrame:
    """The policies of data/methods.csv in their order, indexed by name, with the columns label,
    colour, marker, study, trainer and start ("" if there is none)."""
    return pd.read_csv(DATA / "methods.csv").fillna({"start": ""}).set_index("method")


def policy_of(method: str) -> str:
    """The policy of a system. That of the pretrained model is called as the system is, since it
    shares no weight with the policy of the same name."""
    system = of(method)
    return system.name if system.variant == PRETRAINED else system.policy


def rank(method: str) -> int:
    """The place of a system's policy in the order of data/methods.csv. Those that are not listed,
    and what is no system, come last."""
    names = list(methods().index)
    system = find(method)
    if system is None or system.policy not in names:
        return len(names)
    return names.index(system.policy)


def trainer(method: str) -> str:
    """The trainer of a policy, such as "sft". A mixture of the weights of two policies counts as
    "rloo"."""
    policy = policy_of(method)
    return methods()["trainer"].get(policy, policy.partition("/")[0])


def start_of(method: str) -> str:
    """The policy that a method's training started from, "" if there is none or the file does not
    list the method."""
    system = of(method)
    start = methods()["start"].get(system.policy, "")
    return at_start(method, start) if start and system.variant == PRETRAINED else start


def at_start(method: str, start: str) -> str:
    """The name of the system that draws from `start` as `method` draws from its own policy."""
    return replace(of(method), policy=start).name


def root(method: str) -> str:
    """The first policy of the chain of starts that leads to a method.

    For example, it is sft/free for rloo/program, which starts from sft/program, which starts from
    sft/free. For a method that the file does not list it is "", and its runs count as paired by
    their seeds. Raises ValueError for a start that the file does not list, or that leads back to
    itself."""
    first = lineage(method)[-1]
    return first if of(first).policy in methods()["start"] else ""


@cache
def lineage(method: str) -> tuple[str, ...]:
    """A method's policy, the policy that it started from, the start of that one, and so on. Errors
    as in `root`."""
    starts = methods()["start"]
    chain = [policy_of(method)]
    while start := start_of(chain[-1]):
        if start in chain or of(start).policy not in starts:
            why = "starts from itself" if start in chain else "is not a method of the file"
            raise ValueError(f"data/methods.csv: {start}, the start of {chain[-1]}, {why}")
        chain.append(start)
    return tuple(chain)
