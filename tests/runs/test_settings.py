"""The values that parameters may have: each bound, and that a mistake stops only the run that makes
it."""

import json
import math
import re
from dataclasses import replace

import pytest

from lib.files import ROOT
from lib.game.sets import load
from lib.learn.settings import RLOOSettings, Sampling, SFTSettings
from lib.rewards import REWARDS
from lib.runs import parameters
from lib.runs.declare import DeclarationError, read_notebook
from lib.runs.parameters import FIELDS, check
from lib.runs.plan import Project
from tests.conftest import this_project

NOTEBOOKS = sorted(
    path for path in (ROOT / "notebooks").glob("*.ipynb") if not path.name.startswith("91")
)


def test_every_number_of_every_notebook_has_a_bound():
    """And its default lies within: a number that nobody bounds is refused by nothing."""
    numbers = set()
    for path in NOTEBOOKS:
        defaults, _ = read_notebook(path)
        check(defaults, notebook=path.stem)
        plain = {name: value for name, value in defaults.items() if type(value) in (int, float)}
        numbers |= plain.keys()
        for name in plain.keys() - {"target"}:  # of one problem: any whole number
            with pytest.raises(ValueError, match=name):
                check({name: -math.inf})
    assert len(numbers) > 60


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alpha", 5.0),
        ("alpha", -0.1),
        ("beta", 0.0),
        ("eta", -1.0),
        ("together", 0),
        ("hard_weight", -3),
        ("most_pairs", -2),
        ("mixture", {"+": math.nan}),
        ("five_numbers", -1),
        ("train_rows", 0),
        ("samples", 0),
        ("top_p", 0.0),
        ("nums", [0, 3]),
        ("temperature", 1e-39),
        ("eval_demonstrations", 0),
        ("numbers", 2),
        ("numbers", 5),
        *((name, "") for name in ("reward", "problem_set", "eval_set", "prompt_style", "design")),
        ("eval_rewards", [""]),
        *((name, "data/nowhere") for name in ("init", "policy", "value", "taught", "probes")),
        ("init", "/nowhere"),
        ("taught", "nowhere"),
        *(
            ("searches", [search])
            for search in (
                *(
                    {"beems": 3},
                    {"beams": 0},
                    {"beams": [1, 0]},
                    {"beams": []},
                    {"cascade": "1"},
                    {"rerank": "sfot"},
                ),
                *(
                    {"rerank": 5},
                    {"top_p": 0.0},
                    {"temperature": -1},
                    {"temperature": 1e-39},
                    {"repeats": 0},
                ),
                *({"sets": ["heldout_100"]}, {"sets": []}, {"sets": {"test_50": 4}}, 5),
            )
        ),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_name(name, value):
    with pytest.raises(ValueError, match=f"^{name}(.[+1]|.0)? is .*: ") as caught:
        check({name: value})
    assert len(str(caught.value).splitlines()) == 1 and name in FIELDS


def test_a_notebook_whose_parameters_must_fit_together_says_its_name():
    """Else its rules would not be asked when it is run by hand."""
    named = {}
    for path in NOTEBOOKS:
        found = re.findall(r"Run\(output.*notebook=\\\"(\w+)\\\"", path.read_text())
        named |= dict.fromkeys(found, path.stem)
    assert named == {name: name for name in parameters.TOGETHER}


def test_a_parameter_that_the_cell_lacks_is_named():
    given, _ = read_notebook(ROOT / "notebooks/81_train_exact.ipynb")
    del given["updates"]
    with pytest.raises(ValueError, match="updates is missing: the parameters cell lacks it"):
        check(given, notebook="81_train_exact")


def test_names_of_the_hub_and_what_exists_are_taken():
    check(
        {
            "init": "gpt2",
            "policy": "owner/name@v1",
            "taught": "data/reference/cpu/actions/pick/*",
            "curriculum": "",
        }
    )
    check(
        {"init": "data/models/base-1m", "value": "data/reference/cpu/sft/value/0", "temperature": 0}
    )
    check(
        {
            "searches": [{}, {"temperature": [0, 0.5], "repeats": 2, "sets": ["test_50"]}],
            "together": 1,
        }
    )


def test_settings_say_what_they_lack_and_what_they_do_not_know():
    with pytest.raises(
        ValueError, match="RLOOSettings: .*group_size is missing: the parameters cell lacks it"
    ):
        RLOOSettings.of({"steps": 3})
    with pytest.raises(
        ValueError, match="SFTSettings: .*batchsize is not known: did you mean 'batch_size'"
    ):
        SFTSettings(batchsize=3)
    assert Sampling.of({"max_tokens": 3, "top_k": 2, "other": "x"}) == Sampling(
        max_tokens=3, top_k=2
    )


SFT = "10_train_sft"
RLOO = "11_train_rloo"
PAIRS = "12_sample_pairs"
PREFERENCE = "13_train_preference"
SAMPLES = "15_sample_rollouts"
SEARCH = "16_search"
PROBES = "data/reference/cpu/pairs/free/0"


@pytest.mark.parametrize(
    ("notebook", "change", "message"),
    [
        (RLOO, {"prompt_style": "pick"}, "prompt_style is 'pick': no verifier reads it"),
        (SAMPLES, {"prompt_style": "value"}, "prompt_style is 'value': no verifier reads it"),
        (PAIRS, {"prompt_style": "pick"}, "prompt_style is 'pick': no verifier"),
        (PREFERENCE, {"prompt_style": "pick", "eval_problems": 4}, "'pick': no verifier"),
        (SFT, {"checked": True}, "checked is true, and design .free. writes no traces"),
        (
            RLOO,
            {"prompt_style": "program", "reward": "ast"},
            "'program': no completion can be correct by reward 'ast'",
        ),
        (
            RLOO,
            {"prompt_style": "program_words", "reward": "trace_gated"},
            "no completion can be correct by reward 'trace_g",
        ),
        (RLOO, {"reward": "program"}, "'free': no completion can be correct by reward 'program'"),
        (SFT, {"prompt_style": "program"}, "'program': design 'free' writes .* another form"),
        (SFT, {"prompt_style": "trace"}, "'trace': design 'free' writes .* another form"),
        (SFT, {"design": "program_fresh"}, "'free': design 'program_fresh' writes .* another form"),
        (
            SFT,
            {"prompt_style": "trace", "design": "trace_proof", "give_up": 0.3},
            "never gives up, so it needs give_up = 0.0",
        ),
        (
            SFT,
            {"demonstrations": 9, "five_numbers": 10},
            "five_numbers is 10: .* of the 9",
        ),
        (
            SFT,
            {"demonstrations": 49_801, "eval_demonstrations": 200},
            "need 50001 problems of 3to4, which has 50000",
        ),
        (
            SFT,
            {"demonstrations": 20_000, "five_numbers": 15_000},
            "need 15000 problems of 5num, which has 14950",
        ),
        (RLOO, {"probes": PROBES}, "probes is .*: it needs a curriculum"),
        (
            RLOO,
            {"curriculum_options": {"temperature": 1.0}},
            "curriculum_options .* needs a curriculum",
        ),
        (RLOO, {"curriculum": "mixed"}, "curriculum is 'mixed': it needs a run of probes"),
        (PAIRS, {"problem_set": "owner/set"}, "'owner/set': a set of the hub needs source: hub"),
        (
            SEARCH,
            {"searches": [{"rerank": "learned"}]},
            "value is '': searches with rerank learned need one",
        ),
        (SEARCH, {"value": "data/reference/cpu/sft/value/0"}, "value is .* and no others do"),
        (SEARCH, {"searches": []}, r"searches is \[\]: it has no search"),
        (SEARCH, {"searches": ["x"]}, "searches is 'x': Input should be a valid dictionary"),
        (PREFERENCE, {"eval_problems": 201}, "eval_problems is 201, and validation_200 has 200"),
        (RLOO, {"eval_problems": 10**5}, "eval_problems is 100000, and .* has"),
        ("81_train_exact", {"updates": 3001}, "3to4 has few more problems of . numbers"),
        ("82_train_to_the_end", {"moments": [0, 10**5]}, "moments holds 100000, which is above"),
    ],
)
def test_parameters_that_do_not_fit_together_are_refused(notebook, change, message):
    given, _ = read_notebook(ROOT / f"notebooks/{notebook}.ipynb")
    with pytest.raises(ValueError, match=message):
        check(given | change, given, notebook)


@pytest.mark.parametrize("notebook", [SFT, RLOO, PREFERENCE])
def test_training_goes_on_with_the_adapter_of_its_start_as_it_is(notebook, tmp_path):
    given, _ = read_notebook(ROOT / f"notebooks/{notebook}.ipynb")
    folder = tmp_path / "run/checkpoint"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text('{"r": 16, "lora_alpha": 32}')
    at = {"init": str(tmp_path / "run")}
    for fits in ({}, {"lora_r": 16}):  # with lora_r = 0, the default, it becomes ordinary weights
        check(given | at | fits, given, notebook)
    for other in ({"lora_r": 8}, {"lora_r": 16, "lora_alpha": 16}):
        name = list(other)[-1]
        with pytest.raises(ValueError, match=f"{name} is {other[name]}: the adapter of .* has"):
            check(given | at | other, given, notebook)
    with pytest.raises(ValueError, match="lora_r is -1"):
        check(given | {"lora_r": -1}, given, notebook)


def test_parameters_of_no_notebook_are_checked_one_by_one():
    check({"numbers": 3, "updates": 3001, "problems_per_step": 8})


def test_styles_that_fit_are_taken():
    for style, reward in (
        ("program", "program"),
        ("words", "ast"),
        ("trace", "trace_gated"),
        ("trace", "sparse"),
    ):
        check({"prompt_style": style, "reward": reward, "sets": {"test_50": 4}})
    # imitation is judged by no verifier
    check({"prompt_style": "pick", "epochs": 1, "eval_problems": 0})
    for given in (
        {"source": "hub"},
        {"taught": "data/reference/cpu/sft/free/0"},
        {"design": "program_fresh"},
    ):
        check({"demonstrations": 9, "prompt_style": "program"} | given)
    check({"numbers": 3, "updates": 3000, "problems_per_step": 8})
    sizes = [len(nums) for nums in load("3to4", "train")["nums"]]
    assert min(sizes.count(3), sizes.count(4)) >= 24_000 + 16, (
        "notebook 81 measures gradients on the last sixteen"
    )


EXITS = 'from pathlib import Path\nPath(r"{ran}").touch()\nraise SystemExit\n'


def test_a_broken_reward_file_stops_only_the_run_that_names_it(tmp_path, monkeypatch):
    """It is not even run for what other runs are asked."""
    ran = tmp_path / "ran"
    broken = tmp_path / "broken.py"
    broken.write_text(EXITS.format(ran=ran))
    project = Project()
    declarations = project.declarations.model_copy(deep=True)
    one = declarations.runs["rloo/sparse_200"]
    declarations.runs["rloo/broken"] = one.model_copy(
        update={"params": {"reward": f"{broken}:mine"}}
    )
    project.__dict__["declarations"] = declarations
    project.check()
    assert "rloo/sparse/0" in project.plan("smoke", "rloo/sparse").specs
    assert "rloo/broken/0" in project.specs("smoke") and not ran.exists()
    with pytest.raises(
        DeclarationError, match=r"run rloo/broken/0: .*broken.py, line 3: SystemExit"
    ):
        project.plan("smoke", "rloo/broken")
    assert ran.exists()


def test_rewards_in_files_are_made_where_a_run_names_them(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text("from lib.rewards import register\n")
    project = this_project()
    run = project.specs("smoke")["rloo/sparse/0"]
    check({"reward": f"{tmp_path}/own.py:mine", "eval_rewards": [f"{tmp_path}/own.py:mine"]})
    for given in (
        {"reward": f"{tmp_path}/own.py:mine"},
        {"eval_rewards": ["sparse", f"{tmp_path}/own.py:mine"]},
    ):
        with pytest.raises(DeclarationError, match="run rloo/sparse/0: unknown reward"):
            project.check_own_files([replace(run, params=given)])
    with pytest.raises(ValueError, match="tau"):
        check({"reward": "ast", "reward_options": {"tau": 0}})
    assert set(parameters.of_lib("rewards.REWARDS")) == set(REWARDS)


@pytest.mark.parametrize(
    "reward, options",
    [
        ("dense", {}),
        ("sparse", {"lambda_p": -0.1}),
        ("trace_guarded", {}),
        ("ast", {"lambda_a": -0.5}),
    ],
)
def test_an_advantage_that_divides_by_the_mean_takes_no_reward_below_0(reward, options):
    check({"reward": reward, "reward_options": options, "advantage": "leave_one_out"})
    with pytest.raises(
        ValueError, match=f"advantage is 'max_rl': no reward may be below 0, and '{reward}' gives -"
    ):
        check({"reward": reward, "reward_options": options, "advantage": "max_rl"})


def test_max_rl_takes_the_rewards_that_pay_and_do_not_fine():
    check({"reward": "sparse", "reward_options": {"lambda_p": 0.0}, "advantage": "max_rl"})
    check({"reward": "ast", "advantage": "max_rl"})


def test_a_reward_is_tried_out_before_a_run_starts(tmp_path, monkeypatch):
    """A misspelt name inside of it is found with the file and the line, before finished results are
    set aside."""
    text = """from lib.rewards import Score, register


@register("mine")
def mine():
    return lambda completions, problem: [Score(rihgt, {}) for _ in completions]
"""
    (tmp_path / "own.py").write_text(text)
    project = this_project()
    run = project.specs("smoke")["rloo/sparse/0"]
    with pytest.raises(
        DeclarationError, match=r"own.py, line 6: NameError: name 'rihgt' is not defined"
    ):
        project.check_own_files([replace(run, params={"reward": f"{tmp_path}/own.py:mine"})])
    monkeypatch.setitem(
        REWARDS, "mine", lambda: lambda completions, problem: [1 / 0 for _ in completions]
    )
    with pytest.raises(
        ValueError, match=r"reward 'mine' cannot score a completion: .*ZeroDivisionError"
    ):
        check({"reward": "mine"})


@pytest.mark.parametrize(
    "given, way",
    [
        ({"checked": "false"}, "-p checked True, or False"),
        ({"end_token": "false"}, "-p end_token True, or False"),
        ({"open_rows": "true"}, "-p open_rows True, or False"),
        ({"reward": "ast", "reward_options": '{"tau": 2}'}, "-y '{reward_options: {tau: 2}}'"),
        ({"curriculum_options": "{}"}, "-y '{curriculum_options: {tau: 2}}'"),
    ],
)
def test_a_text_in_place_of_a_truth_value_or_of_options_is_refused(given, way):
    """`papermill -p checked false` passes the text "false", which would count as true."""
    with pytest.raises(ValueError, match=f"not a text; papermill passes it with {re.escape(way)}"):
        check(given)


@pytest.mark.parametrize(
    "name", ["init", "taught", "prompt_style", "five_numbers", "eval_rewards", "checked", "steps"]
)
def test_a_parameter_is_never_nothing(name):
    with pytest.raises(ValueError, match=f"{name} is None"):
        check({name: None})


def test_every_truth_value_and_every_options_of_a_notebook_has_a_type():
    for path in NOTEBOOKS:
        defaults, _ = read_notebook(path)
        untyped = {
            name for name, value in defaults.items() if type(value) in (bool, dict)
        } - FIELDS.keys()
        # of a study: the runs of each size or start, which exist or not
        assert untyped <= {"sizes", "policies"}, path.name


@pytest.mark.parametrize(
    "given", [{"problem_set": "{}"}, {"eval_set": "{}"}, {"sets": {"{}": 4}}, {"sets": ["{}"]}]
)
def test_a_file_of_problems_is_read_before_a_run_starts(tmp_path, given):
    """And not when the run is under way, after a warm-up of minutes."""
    path = tmp_path / "own.csv"
    path.write_text("nums,target\n3 5 7,26\n1 2 3 4 5 6 7,28\n")
    text = json.dumps(given).replace('"{}"', f'"{path}"')
    project = this_project()
    run = project.specs("smoke")["rloo/sparse/0"]
    with pytest.raises(
        DeclarationError,
        match=r"run rloo/sparse/0: .*own.csv, line 3: .* two to six numbers, not 7",
    ):
        project.check_own_files([replace(run, params=json.loads(text))])
    path.write_text("nums,target\n3 5 7,26\n")
    project.check_own_files([replace(run, params=json.loads(text))])
