"""All runs of the GPU profiles: the parameters to which each run resolves."""

import json
import re
import shlex
from dataclasses import replace
from fnmatch import fnmatch

import pytest
from typer.testing import CliRunner

from lib.files import PROBLEMS, ROOT
from lib.game.prompts import ENDS, PROMPTS, render_prompt
from lib.game.sets import EVALUATION_SETS
from lib.runs import hours, machine
from lib.runs.__main__ import app
from lib.runs.declare import DeclarationError
from lib.runs.hours import expected, show_plan
from lib.runs.plan import Project
from tests.conftest import this_project

GPU = ["paper", "gpu24", "gpu8"]
BATCHES = [  # of profile paper: runs (the first that fits counts), problems and rollouts of each
    ("rloo/trace_explore", 32, 16),
    ("rloo/sparse_k16*", 128, 16),
    ("rloo/program*", 128, 16),
    ("rloo/trace_*", 64, 8),
    ("rloo/*_200", 64, 8),
    ("rloo/sparse_50", 64, 8),
    ("rloo/*", 128, 8),
]
NO_TABLE = [
    "rloo_maxrl",
    "rloo_*grpo",
    "cov_*",
    "hot_*",
    "mix_*",
    "screen_*",
    "levels_*",
    "heldout400_*",
    "numbers56_*",
    "*_steps",
]
# options of ours, which no paper has in a table
NO_TABLE += ["rloo_dense_*", "rloo_curriculum_*", "rloo_cov_*"]


@pytest.fixture(scope="module", params=GPU)
def everything(request):
    specs = this_project().specs(request.param)
    assert len(specs) > 600
    return request.param, specs.values()


def test_no_run_learns_faster_than_a_model_of_the_hub_can(everything):
    training = [spec for spec in everything[1] if spec.notebook[:2] in ("10", "11", "13")]
    fast = {spec.name: rate for spec in training if (rate := spec.params["learning_rate"]) > 5e-5}
    assert len(training) > 200 and not fast


def test_an_update_has_as_many_rollouts_as_its_paper_states(everything):
    profile, specs = everything
    for spec in (spec for spec in specs if spec.notebook == "11_train_rloo"):
        problems, group = next(sizes for pattern, *sizes in BATCHES if fnmatch(spec.run, pattern))
        found = spec.params["problems_per_step"], spec.params["group_size"]
        assert found == ((problems, group) if profile == "paper" else (256 // group, group)), (
            spec.name
        )
        assert (
            spec.params["steps"] <= 200
            and spec.params["problems_per_step"] * group % spec.params["micro_batch"] == 0
        )


def test_probes_cost_a_quarter_of_the_updates(everything):
    specs = {spec.name: spec.params for spec in everything[1]}
    for run, probes, whole in (
        ("rloo/curriculum_success/0", "pairs/probes/100", "rloo/sparse/0"),
        ("rloo/trace_difficulty/0", "pairs/trace_probes/100", "rloo/trace_outcome/0"),
    ):
        update = specs[run]["problems_per_step"] * specs[run]["group_size"]
        spent = specs[run]["steps"] * update + specs[probes]["problems"] * specs[probes]["samples"]
        assert spent == pytest.approx(specs[whole]["steps"] * update, rel=0.02), run


def test_no_run_equals_another(everything):
    made = {}
    for spec in everything[1]:
        params = {
            key: value for key, value in spec.params.items() if spec.notebook != "90_compare_all"
        }
        made.setdefault(
            json.dumps([spec.notebook, params, spec.declaration.needs], sort_keys=True), []
        ).append(spec.name)
    assert not [names for names in made.values() if len(names) > 1]


def test_every_prompt_is_in_words(everything):
    """But those of formats that every model has to be taught."""
    styles = {spec.params.get("prompt_style", "words") for spec in everything[1]}
    assert styles == {"words", "program_words", "trace", "pick", "value"}
    for spec in everything[1]:
        parents = {parent.params.get("prompt_style") for parent in spec.parents.values()} - {None}
        if (
            spec.notebook in ("11_train_rloo", "15_sample_rollouts")
            and spec.params["prompt_style"] != "program_words"
        ):
            assert parents <= {spec.params["prompt_style"]}, (
                f"{spec.name} is asked otherwise than it was taught"
            )


def test_what_a_paper_tabulates_is_sampled_on_fifty_problems(everything):
    sampled = [spec for spec in everything[1] if spec.notebook == "15_sample_rollouts"]
    tabulated = []
    for spec in sampled:
        if not any(fnmatch(spec.run, f"sample/{name}") for name in NO_TABLE):
            tabulated.append(spec)
    assert len(tabulated) > 80
    assert not [spec.name for spec in tabulated if "test_50" not in spec.params["sets"]]


def test_and_in_profile_paper_on_the_hubs_own_fifty_as_often():
    specs = this_project().specs("paper").values()
    asked = [spec.params["sets"] for spec in specs if spec.notebook == "15_sample_rollouts"]
    both = [sets for sets in asked if "test_50" in sets]
    assert len(both) > 80 and all(sets.get("hub_test_50") == sets["test_50"] for sets in both)
    searched = [spec.params for spec in specs if spec.notebook == "16_search"]
    points = [one.get("sets", params["sets"]) for params in searched for one in params["searches"]]
    fifty = [sets for sets in points if "test_50" in sets]
    assert len(fifty) > 30 and all("hub_test_50" in sets for sets in fifty)


def test_the_papers_chat_prompts_are_lines_of_the_profile():
    """Those that lib/runs/README.md names: every run then asks in the chat style."""
    project = Project()
    declared = project.declarations
    paper = declared.profiles["paper"]
    runs = json.loads(json.dumps(paper.runs).replace("program_words", "program_chat"))
    chat = paper.model_copy(
        update={"params": paper.params | {"prompt_style": "chat"}, "runs": runs}
    )
    project.declarations = declared.model_copy(
        update={"profiles": declared.profiles | {"paper": chat}}
    )
    styles = {
        spec.params["prompt_style"]
        for spec in project.specs("paper").values()
        if "prompt_style" in spec.params
    }
    assert styles == {"chat", "program_chat", "trace", "pick", "value"}


# --- the plan -------------------------------------------------------------------------------------


def test_the_plan_of_the_five_papers_has_hours_for_all_that_was_measured_and_disk(
    capsys, monkeypatch
):
    monkeypatch.setattr(hours, "find_spec", lambda name: None)
    project = this_project()
    plan = project.plan("paper", "ast", "program", "dense_all", "trace", "agent")
    seconds = expected(project, "paper", [plan.specs[run] for run in plan.waiting])
    assert plan.specs.keys() == seconds.keys()
    show_plan(project, plan, seconds, 1)
    said = capsys.readouterr().out
    assert "on one H100" in said and " GB of disk" in said and "vLLM is not installed" in said
    update = 128 * 8 * 1024 * (1 / 21_232 + 1 / 34_191)
    assert seconds["rloo/sparse/0"] == pytest.approx(100 * update)


def test_several_groups_may_be_named_in_one_pair_of_quotes():
    asked = CliRunner().invoke(app, ["plan", "paper", "ast program dense_all trace agent"])
    assert asked.exit_code == 0 and "on one H100" in asked.output and " GB of disk" in asked.output
    groups = re.findall(r"^  (\w+) +(\d+) runs +[\d:]+ +(\d+) GB$", asked.output, re.M)
    assert [name for name, *_ in groups] == ["ast", "program", "dense_all", "trace", "agent"]
    (runs,), (disk,) = (
        re.findall(rf"(\d+) {what}", asked.output) for what in ("runs, 0", "GB of disk")
    )
    assert sum(int(n) for _, n, _ in groups) > int(runs) and sum(int(n) for *_, n in groups) > int(
        disk
    )


def test_the_bound_of_a_search_by_hand():
    given = {"sets": ["levels", "test_50"], "limit": 0}
    assert hours.sampled_actions({"beams": 1, "samples": 8}, given) == 626 * (8 + 2 * 8)
    assert hours.sampled_actions({"beams": 16, "samples": 16, "sets": ["test_50"]}, given) == 50 * (
        16 + 2 * 16 * 16
    )
    grid = {
        "beams": 1,
        "samples": 1,
        "rerank": ["none", "soft"],
        "weight": [1.0, 2.0, 4.0],
        "repeats": 16,
    }
    assert hours.sampled_actions(grid, given | {"limit": 20}) == 40 * 3 * 16 * 6
    assert hours.sampled_actions({"cascade": "16 x 1/1, 16/16"}, given) == 626 * (
        16 * 3 + 16 + 2 * 16 * 16
    )


SAMPLED, TRAINED = 21_232, 34_191  # tokens a second of profile paper


@pytest.mark.parametrize(
    ("notebook", "params", "seconds"),
    [
        (
            "10_train_sft",
            {"source": "generated", "demonstrations": 300, "epochs": 3},
            3 * 300 * 500 / TRAINED,
        ),
        (
            "10_train_sft",
            {"source": "hub", "demonstrations": 300, "epochs": 2},
            2 * 1000 * 500 / TRAINED,
        ),
        (
            "12_sample_pairs",
            {"problems": 10, "samples": 4, "max_tokens": 50},
            10 * 4 * 50 / SAMPLED,
        ),
        (
            "13_train_preference",
            {"steps": 7, "batch_size": 5, "max_tokens": 50},
            7 * 5 * 2 * 50 / TRAINED,
        ),
        ("14_value_actions", {"problems": 10, "samples": 4}, 10 * 3 * 4 * 32 / SAMPLED),
        (
            "15_sample_rollouts",
            {"sets": {"test_50": 4, "levels": 2}, "limit": 0},
            (200 + 1152) * 1024 / SAMPLED,
        ),
        (
            "15_sample_rollouts",
            {"sets": {"levels": 2}, "limit": 100, "max_tokens": 50},
            200 * 50 / SAMPLED,
        ),
        ("70_coverage", {}, None),
    ],
)
def test_the_bound_of_each_kind_of_run_by_hand(notebook, params, seconds):
    spec = this_project().specs("paper")["sft/free/0"]
    spec = replace(
        spec, declaration=spec.declaration.model_copy(update={"notebook": notebook}), params=params
    )
    assert hours.measured(spec) == (pytest.approx(seconds) if seconds else None)
    assert hours.measured(replace(spec, profile="cpu")) is None


def test_disk_is_for_all_policies_and_the_saved_states_of_one_run():
    specs = this_project().specs("paper")
    assert hours.disk(
        [specs[name] for name in ("sft/free/0", "rloo/sparse/0", "sample/sft_free/0")]
    ) == 2.0 * (2 + 6)
    assert hours.disk([specs["sample/sft_free/0"]]) == 0


def test_the_bound_counts_all_problems_of_a_set():
    rows = {
        name: entry["rows"]
        for name, entry in json.loads((PROBLEMS / "manifest.json").read_text()).items()
    }
    sizes = {name: rows.get("/".join(place), 50) for name, place in EVALUATION_SETS.items()}
    assert {name: hours.problems(name, 0) for name in sizes} == {
        name: max(50, n) for name, n in sizes.items()
    }
    assert hours.problems("sealed_2000", 1500) == 1500 and hours.problems("test_50", 1500) == 50


def test_the_plan_of_everything_has_hours(capsys):
    project = this_project()
    plan = project.plan("paper", "full")
    show_plan(
        project, plan, expected(project, "paper", [plan.specs[run] for run in plan.waiting]), 1
    )
    line = re.search(r"on one H100 .*", capsys.readouterr().out)
    hours = dict(re.findall(r"(\w+) (\d+):\d\d:\d\d", line[0])) if line else {}
    assert 200 < int(hours["rloo"]) < 1000 and 50 < int(hours["sample"]) < 300


def test_the_commands_for_one_h100_are_half_a_page_and_say_what_they_promise():
    page = (ROOT / "lib/runs/README.md").read_text()
    section = page[page.index("## One H100") : page.index("## Another base model")]
    commands = [line.partition("  #")[0] for line in section.split("```")[1].splitlines()[1:]]
    assert len(section.splitlines()) <= 35 and commands[0].startswith("make PYTHON=python3")
    (plan,) = (shlex.split(line)[1:] for line in commands if " plan " in line)
    assert plan[:2] == ["-m", "lib.runs"]
    done = CliRunner().invoke(app, plan[2:])
    assert done.exit_code == 0, done.output
    assert (
        re.match(r"\d+ runs, ", done.stdout)
        and "on one H100 " in done.stdout
        and " GB of disk" in done.stdout
    )
    runs = re.search(r"# (\d+) runs", section)
    assert runs and done.stdout.startswith(f"{runs[1]} runs")
    studies = [line for line in commands if " study " in line]
    asked = []
    for line in studies:
        asked.append(dict(word.split("=") for word in shlex.split(line)[2:]))
    assert len(asked) == 3 and all(one["PROFILE"] == "paper" for one in asked)
    wanted = {
        name for one in asked for name in this_project().plan("paper", *one["GROUP"].split()).specs
    }
    assert wanted == {*this_project().plan("paper", *plan[4:]).specs}


def test_an_engine_that_is_missing_is_named_only_where_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(hours, "find_spec", lambda name: None)
    assert "-c requirements.txt" in hours.engine_missing(["", "vllm"])
    assert hours.engine_missing(["", "transformers"]) == ""
    monkeypatch.setattr(hours, "find_spec", lambda name: object())
    assert hours.engine_missing(["vllm"]) == ""


def test_a_run_of_other_profiles_is_neither_planned_nor_read():
    project = this_project()
    paper = project.specs("paper")
    cpu = project.specs("cpu")
    assert "rloo/sparse_50/0" in paper and "rloo/sparse_50/0" not in cpu
    assert "rloo/sparse_533/0" in cpu and not [name for name in paper if "_533" in name]
    assert not [parent for parent in paper["study/ast/0"].declaration.parents if "_533" in parent]
    with pytest.raises(DeclarationError, match="profile paper has no run of rloo/sparse_533"):
        project.asked("paper", ["rloo/sparse_533"])
    assert project.asked("paper", ["coverage"])


@pytest.mark.parametrize(
    "said, names",
    [
        (
            "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-9a3b-11)\n  MIG 1g Device 0: (UUID: MIG-1)\n",
            ["GPU-9a3b-11"],
        ),
        (None, ["0"]),
    ],
)
def test_a_gpu_in_a_container_goes_by_the_drivers_name_or_is_counted(
    said, names, tmp_path, monkeypatch
):
    """The container has the machine's fourth GPU alone, which CUDA calls 0."""
    (tmp_path / "nvidia3").touch()
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(machine, "DEVICES", tmp_path)
    for variable in ("COUNTDOWN_GPUS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)

    def run(*args, **options):
        if said is None:
            raise FileNotFoundError("nvidia-smi")
        return machine.subprocess.CompletedProcess(args, 0, stdout=said)

    monkeypatch.setattr(machine.subprocess, "run", run)
    assert machine.gpus() == names


@pytest.mark.parametrize(
    "value, names",
    [("", []), ("-1", []), ("NoDevFiles", []), ("2,GPU-9a3b-11", ["2", "GPU-9a3b-11"])],
)
def test_visible_gpus_are_taken_from_the_environment(value, names, monkeypatch):
    monkeypatch.delenv("COUNTDOWN_GPUS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert machine.gpus() == names


# --- prompt styles --------------------------------------------------------------------------------


def test_a_chat_style_is_template_wording_and_end_token_together():
    text = render_prompt([79, 17, 60], 36, "chat")
    assert (
        text.startswith("<|im_start|>system\n")
        and text.count("<|im_end|>") == 2
        and "[79 17 60]" in text
    )
    assert text.endswith("<|im_start|>assistant\nLet me solve this step by step.\n")
    assert {"chat", "program_chat"} == {*ENDS} < {*PROMPTS}
    assert "{" not in render_prompt([1, 2], 3, "program_chat")
