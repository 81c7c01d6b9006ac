"""The widgets of notebook 91: what each shows, and which changes of other widgets update it.

The rollouts are found, judged and drawn by `lib.study.explorer`.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import numpy as np
import pandas as pd

from lib.files import RUNS, shown
from lib.game.verifiers import STATUSES
from lib.rewards import REWARDS
from lib.study import explorer

WIDE = {"width": "270px"}
WIDER = {"width": "430px"}


def _menu(description: str, options: Sequence[str] = (), layout=WIDE) -> Any:
    """A menu whose values are texts."""
    return widgets.Dropdown(description=description, options=options, layout=layout)


def _change(widget: widgets.Widget, action: Callable, **traits) -> None:
    """Changes a widget, such as a menu's options and value, in this order, without a call of the
    `action` that observes its value."""
    widget.unobserve(action, "value")
    for name, value in traits.items():
        setattr(widget, name, value)
    widget.observe(action, "value")


def _titled(folders: dict[str, Path]) -> list[tuple[str, str]]:
    """Runs as the options of a menu: each run's title and its name."""
    return [(f"{explorer.title(folder)} · {name}", name) for name, folder in folders.items()]


class Explorer:
    """Two tabs, `tabs`: one to read the rollouts of finished runs, one to give a policy a problem
    of your own.

    profile: the profile whose runs are listed at first. runs: the runs that are shown at first.
    page: how many rollouts are listed at once. ask(folder, nums, target, samples, seed): a function
    that samples the policy in a run's folder and returns judged rollouts, in the form that
    `explorer.page` takes. Call `enter` when the tabs are displayed: it loads the first runs."""

    def __init__(
        self, profile: str, runs: Sequence[str], page: int, ask: Callable[..., pd.DataFrame]
    ):
        self.runs = runs
        self.page = max(page, 1)
        self.draw_rollouts = ask
        self.found = explorer.find(profile, *explorer.WRITTEN)  # the profile's runs with rollouts
        self.policies: dict[str, Path] = {}  # the profile's runs with a policy
        self.table: pd.DataFrame | None = None  # all rollouts of the runs that are shown
        # positions in `table` of the rollouts that pass the filters
        self.at = np.array([], np.int64)
        self.source = _menu("profile", explorer.profiles(), WIDER)
        self.source.value = profile
        self.tabs = widgets.Tab([self._reading(), self._asking()])
        self.tabs.titles = ("read rollouts", "ask a policy")
        actions = {self.enter: [self.source], self.offer: [self.search], self.add: [self.listed]}
        actions |= {self.refill: [self.chosen], self.relist: [self.number]}
        actions[self.rechoose] = [
            self.problem_set,
            self.verdicts,
            self.least,
            self.differ,
            self.sort,
        ]
        actions[self.show] = [self.rollouts, self.draw, self.reward]
        for action, triggers in actions.items():
            for widget in triggers:
                widget.observe(action, "value")
        self.go.on_click(self.ask)
        self.save.on_click(self.export)

    def _reading(self) -> widgets.Widget:
        self.search = widgets.Text(
            description="search", placeholder="sft, ast, trace, seed 0 ...", layout=WIDER
        )
        self.listed = widgets.Select(rows=7, description="runs", layout=WIDER)
        self.chosen = widgets.TagsInput(allow_duplicates=False)
        self.problem_set = _menu("set")
        self.verdicts = widgets.SelectMultiple(
            options=STATUSES, rows=5, description="verdicts", layout=WIDE
        )
        self.verdicts.value = [status for status in STATUSES if status != "missing"]
        self.least = widgets.IntSlider(
            max=20, description="attempts", continuous_update=False, layout=WIDE
        )
        self.differ = widgets.Checkbox(description="differ: some solve it", layout=WIDE)
        self.sort = _menu("sort", explorer.SORTS)
        self.reward = _menu("reward", [explorer.OWN, *REWARDS])
        self.number = widgets.BoundedIntText(min=1, max=1, description="page", layout=WIDE)
        self.draw = widgets.IntSlider(min=0, max=15, description="draw", layout=WIDE)
        self.rollouts = widgets.Select(rows=7, description="rollouts", layout={"width": "98%"})
        self.said = widgets.Label()
        self.view = widgets.HTML()
        self.save = widgets.Button(description="save as CSV")
        self.saved = widgets.Label()
        filters = widgets.VBox([self.problem_set, self.least, self.sort, self.differ])
        run_menus = widgets.VBox([self.source, self.search, self.listed])
        controls = widgets.HBox([run_menus, filters, widgets.VBox([self.verdicts, self.reward])])
        controls.layout.flex_flow = "row wrap"
        paging = widgets.HBox([self.number, self.draw, self.save, self.saved])
        return widgets.VBox([controls, self.chosen, self.said, self.rollouts, paging, self.view])

    def _asking(self) -> widgets.Widget:
        self.policy = _menu("policy", layout=WIDER)
        self.typed = widgets.Text(value="44 19 35", description="numbers")
        self.target = widgets.IntText(value=98, description="target")
        self.samples = widgets.BoundedIntText(value=4, min=1, max=16, description="samples")
        self.seed = widgets.IntText(value=0, description="seed")
        self.go = widgets.Button(description="sample and judge")
        self.answered = widgets.Label()
        self.judged = widgets.HTML()
        problem = widgets.VBox([self.policy, self.typed, self.target])
        inputs = widgets.HBox([problem, widgets.VBox([self.samples, self.seed, self.go])])
        return widgets.VBox([inputs, self.answered, self.judged])

    # --- tab "read rollouts": each method is called when the user changes a widget ---

    def enter(self, _=None) -> None:
        """Another profile was chosen: list its runs and its policies, and show those of `runs` that
        it has."""
        self.chosen.value = []
        self.found = explorer.find(self.source.value, *explorer.WRITTEN)
        self.policies = {}
        with suppress(FileNotFoundError):  # the profile may have no policy
            self.policies = explorer.find(self.source.value, "checkpoint")
        self.policy.options = _titled(self.policies)
        self.policy.value = next(iter(self.policies), None)
        self.chosen.allowed_tags = list(self.found)
        self.offer()
        self.chosen.value = [name for name in self.runs if name in self.found]
        if not self.chosen.value:
            self.refill()

    def offer(self, _=None) -> None:
        """The search text has changed: list the runs whose titles contain all of its words."""
        words = self.search.value.lower().split()
        options = []
        for option in _titled(self.found):
            title_text = option[0].lower()
            if all(word in title_text for word in words):
                options.append(option)
        _change(self.listed, self.add, options=options, value=None)

    def add(self, _=None) -> None:
        """A run was chosen in the list: show it as well."""
        if self.listed.value and self.listed.value not in self.chosen.value:
            self.chosen.value = [*self.chosen.value, self.listed.value]
        self.listed.value = None

    def refill(self, _=None) -> None:
        """The runs to show have changed: load them, and keep the chosen problem set if they have
        it."""
        # which empties the view
        self.table = None
        self.rollouts.options = []
        if not self.chosen.value:
            self.said.value = "choose a run in the list"
            return
        self.said.value = f"loading {', '.join(self.chosen.value)} ..."
        try:
            self.table = explorer.load({name: self.found[name] for name in self.chosen.value})
        except (OSError, ValueError) as error:
            self.said.value = str(error)
            return
        if self.table.empty:
            self.said.value = "the chosen runs have no rollouts"
            self.table = None
            return
        previous_set = self.problem_set.value
        sets = list(self.table["set"].cat.categories)
        selected_set = next(
            (name for name in (previous_set, "heldout_1000") if name in sets), sets[0]
        )
        _change(self.problem_set, self.rechoose, options=sets, value=selected_set)
        self.rechoose()

    def rechoose(self, _=None) -> None:
        """The filter or the order has changed: choose the rollouts again."""
        if self.table is None:
            return
        filters = (
            self.problem_set.value,
            self.verdicts.value,
            self.least.value,
            self.differ.value,
            self.sort.value,
        )
        self.at = explorer.choose(self.table, self.chosen.value, *filters)
        self.said.value = explorer.size(self.table.iloc[self.at])
        _change(self.number, self.relist, max=max(-(-len(self.at) // self.page), 1), value=1)
        self.relist()

    def relist(self, _=None) -> None:
        """Another page of the list was chosen: show one line for each of its rollouts."""
        if self.table is None:
            return
        positions = self.at[(self.number.value - 1) * self.page : self.number.value * self.page]
        lines = [
            (explorer.line(self.table.iloc[position]), int(position)) for position in positions
        ]
        _change(
            self.rollouts,
            self.show,
            options=lines,
            value=int(positions[0]) if len(positions) else None,
        )
        self.show()

    def show(self, _=None) -> None:
        """Another rollout was chosen: show it next to rollouts of the other runs on the same
        problem."""
        if self.table is None or self.rollouts.value is None:
            self.view.value = ""
            return
        positions = explorer.beside(
            self.table, self.rollouts.value, self.chosen.value, self.at, self.draw.value
        )
        self.view.value = explorer.page(self.table, positions, self.reward.value)

    def export(self, _=None) -> None:
        """The button was clicked: write all rollouts that pass the filters to a file."""
        if self.table is None or not len(self.at):
            self.saved.value = "no rollout is chosen"
            return
        try:
            path = explorer.export(self.table, self.at, RUNS / "scratch/rollouts.csv")
        except OSError as error:
            self.saved.value = str(error)
            return
        self.saved.value = f"{len(self.at):,} lines in {shown(path)}"

    # --- tab "ask a policy" ---

    def ask(self, _=None) -> None:
        """The button was clicked: sample the policy on the problem that was typed."""
        self.judged.value = ""
        words = re.split(r"[\s,;]+", self.typed.value.strip())
        if not 2 <= len(words) <= 6 or not all(
            re.fullmatch("[1-9][0-9]{0,2}", word) for word in words
        ):
            self.answered.value = "two to six numbers from 1 to 999, as in: 44 19 35"
            return
        if self.policy.value is None:
            self.answered.value = f"profile {self.source.value} holds no policy"
            return
        self.answered.value = "sampling ..."
        nums = list(map(int, words))
        folder = self.policies[self.policy.value]
        problem = (nums, self.target.value)
        try:
            table = self.draw_rollouts(folder, *problem, self.samples.value, self.seed.value)
        except Exception as error:  # of the policy's files, or for want of memory
            self.answered.value = f"the policy cannot be sampled ({type(error).__name__}: {error})"
            return
        self.answered.value = f"{len(table)} rollouts"
        self.judged.value = explorer.page(table, list(range(len(table))), self.reward.value)
