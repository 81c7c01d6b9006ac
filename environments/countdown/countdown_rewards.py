"""Countdown as a taskset of `verifiers` (0.4): the problem sets and the rewards of this repository.

    vf-eval countdown-rewards --env.taskset.problems levels --env.taskset.task.reward ast

A rollout's last reply is scored by itself. A reward that compares the completions of a group
(`trace_group`, `trace_hardness`, `trace_dense` with mixed groups) sees a group of one here."""

import verifiers.v1 as vf
from pydantic import Field

from lib.files import PROBLEMS
from lib.game.expression import render
from lib.game.problem import Problem, as_problems
from lib.game.sets import EVALUATION_SETS, FILES, admitted, from_file, read_set
from lib.game.solver import solutions
from lib.game.verifiers import verify_answer
from lib.rewards import get_reward, score_group

__all__ = ["CountdownTaskset"]

PROMPT = (
    "Using the numbers [{nums}], create an expression that equals {target}. Use +, -, *, / and "
    "parentheses, and every number exactly once. Think in <think> </think> tags and return the "
    "expression in <answer> </answer> tags, for "
    "example <answer>(1 + 2) / 3</answer>."
)


class CountdownData(vf.TaskData):
    nums: tuple[int, ...]
    target: int


class CountdownTaskConfig(vf.TaskConfig):
    reward: str = "sparse"
    """A key of lib.rewards.REWARDS, or file.py:name from the repository's root."""
    options: dict[str, float | int | bool | str] = Field(default_factory=dict)
    """The reward's options."""


class CountdownTask(vf.Task[CountdownData, vf.State, CountdownTaskConfig]):
    @property
    def problem(self) -> Problem:
        return Problem(self.data.nums, self.data.target)

    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        """What the reward pays for the last reply."""
        return self.score_of(trace).total

    @vf.metric
    async def parts(self, trace: vf.Trace) -> dict[str, float]:
        """The parts of the reward, and whether the verifier judges the answer correct, whatever the
        reward pays."""
        correct = verify_answer(trace.last_reply, self.problem).status == "correct"
        return self.score_of(trace).parts | {"correct": float(correct)}

    def score_of(self, trace: vf.Trace):
        reward = get_reward(self.config.reward, self.config.options)
        return score_group(reward, [trace.last_reply], self.problem)[0]

    async def validate(self, runtime: vf.Runtime) -> bool:
        """Whether the verifier judges the solver's first solution correct."""
        found = solutions(self.problem)
        answer = f"<answer>{render(found[0])}</answer>" if found else ""
        return verify_answer(answer, self.problem).status == "correct"


class CountdownConfig(vf.TasksetConfig):
    problems: str = "heldout_1000"
    """An evaluation set, "3to4/train", "5num/train", or a file of problems."""
    task: CountdownTaskConfig = CountdownTaskConfig()


class CountdownTaskset(vf.Taskset[CountdownTask, CountdownConfig]):
    def load(self) -> list[CountdownTask]:
        """Raises ProblemSetError for a set that is unknown; a file is filtered as one to train
        on."""
        name = self.config.problems
        table = (
            admitted(from_file(name), name, train=True)
            if name.endswith(FILES)
            else read_set(
                PROBLEMS,
                *EVALUATION_SETS.get(name, name.split("/", 1) if "/" in name else (name, "train")),
            )
        )
        return [self.task(problem) for problem in as_problems(table)]

    def task(self, problem: Problem) -> CountdownTask:
        prompt = PROMPT.format(nums=", ".join(map(str, problem.nums)), target=problem.target)
        data = CountdownData(nums=problem.nums, target=problem.target, prompt=prompt)
        return CountdownTask(data, self.config.task)
