"""Eq. 3 by hand and against TRL's own losses; pairs; exact resuming; and that training makes the
policy prefer."""

import math
import os
import signal

import pandas as pd
import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from trl import DPOTrainer

import lib.learn.preference
from lib.game.prompts import render_prompt
from lib.game.sets import load_set
from lib.learn.losses import preference_loss
from lib.learn.preference import (
    PreferenceSettings,
    PreferenceTrainer,
    hold_back,
    hub_pairs,
    preference_pairs,
    train_preference,
    with_prompts,
)
from lib.learn.trainer import schedule
from lib.study.judging import judge
from tests.learn.test_training import metrics_of, run_in_child, tiny_policy, weights_of

RIGHT, LONG, WRONG = (
    "<answer>1 + 2 + 3</answer>",
    "<think>1 + 2 = 3</think><answer>3 + 3</answer>",
    "<answer>1</answer>",
)
PAIRS = Dataset.from_list(
    [
        {"nums": [1, 2, 3], "target": 6 + i, "chosen": (RIGHT, LONG)[i % 2], "rejected": WRONG}
        for i in range(12)
    ]
)


def settings_of(**changes):
    values = {
        "loss": "ipo",
        "beta": 0.1,
        "steps": 6,
        "batch_size": 4,
        "learning_rate": 1e-2,
        "weight_decay": 1e-4,
        "max_grad_norm": 1.0,
        "max_tokens": 8,
        "eval_every": 2,
        "save_every": 2,
        "seed": 0,
    }
    return PreferenceSettings(**values | changes)


def train(folder, steps=6, pairs=PAIRS, **changes):
    held_out = load_set("validation_200").select(range(2))
    train_preference(tiny_policy(), pairs, folder, settings_of(steps=steps, **changes), held_out)


def test_ipo_by_hand():
    # h = 2 - (-1) = 3 and 0 - 4 = -4; the target is 1 / (2 * 0.1) = 5: ((3 - 5)^2 + (-4 - 5)^2) / 2
    chosen = torch.tensor([2.0, 0.0])
    rejected = torch.tensor([-1.0, 4.0])
    loss, metrics = preference_loss(chosen, rejected, 0.1)
    assert loss.item() == pytest.approx((4 + 81) / 2)
    assert metrics["margin"] == pytest.approx(0.1 * (3 - 4) / 2) and metrics["preferred"] == 0.5
    assert metrics["reward_chosen"] == pytest.approx(0.1 * (2 + 0) / 2)
    assert metrics["reward_rejected"] == pytest.approx(0.1 * (-1 + 4) / 2)
    # a margin of 0 prefers neither side
    assert preference_loss(chosen, chosen, 0.1)[1]["preferred"] == 0
    dpo = (math.log(1 + math.exp(-0.3)) + math.log(1 + math.exp(0.4))) / 2
    assert preference_loss(chosen, rejected, 0.1, "dpo")[0].item() == pytest.approx(dpo)


@settings(deadline=None)
@given(st.floats(-20, 20), st.floats(0.02, 2))
def test_ipo_wants_its_margin_and_no_more(ratio, beta):
    h = torch.tensor([ratio], dtype=torch.float64, requires_grad=True)
    preference_loss(h, torch.zeros(1), beta)[0].backward()
    assert h.grad.item() == pytest.approx(2 * (ratio - 1 / (2 * beta)), abs=1e-9)


def test_dpo_is_trls_own_loss(tmp_path):
    """The same trainer and batch, after updates that took the policy away from its reference."""
    one_step = settings_of(loss="dpo", steps=1)
    rows = PAIRS.map(lambda row: {"prompt": "?"}).select_columns(["prompt", "chosen", "rejected"])
    trainer = PreferenceTrainer(*tiny_policy(), rows, tmp_path, one_step, None, "free")
    trainer.loss_types = ["sigmoid"]
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    batch = next(iter(trainer.get_train_dataloader()))
    expected = DPOTrainer._compute_loss(trainer, trainer.model, batch, False)
    assert trainer._compute_loss(trainer.model, batch).item() == pytest.approx(
        expected.item(), rel=1e-4
    )
    assert expected.item() != pytest.approx(
        preference_loss(*torch.zeros(2, 4), 0.1, "dpo")[0].item()
    )


@pytest.mark.parametrize("loss", ["ipo", "dpo"])
def test_training_prefers_the_chosen(tmp_path, loss):
    train(tmp_path, steps=8, save_every=8, loss=loss)
    table = metrics_of(tmp_path)
    assert table["margin"].iloc[0] == pytest.approx(0, abs=1e-6) and table["margin"].iloc[-1] > 0.01
    assert table["preferred"].iloc[-1] == 1 and table["loss"].iloc[-1] < table["loss"].iloc[0]
    assert table["eval_accuracy"].dropna().index.tolist() == [1, 3, 5, 7]
    assert (table["eval_entropy"].dropna() > 0).all()


def test_a_killed_run_resumes_exactly(tmp_path, monkeypatch):
    train(tmp_path / "whole")
    killed = tmp_path / "killed"

    def train_and_die():
        log = PreferenceTrainer.log

        def log_then_die(self, *arguments):
            log(self, *arguments)
            if self.state.global_step == 5:
                os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(PreferenceTrainer, "log", log_then_die)
        train(killed)

    assert run_in_child(train_and_die) == signal.SIGKILL
    train(killed)
    pd.testing.assert_frame_equal(
        metrics_of(killed), metrics_of(tmp_path / "whole"), check_exact=True
    )
    assert torch.equal(weights_of(killed), weights_of(tmp_path / "whole"))


def test_a_batch_in_pieces_is_the_same_update(tmp_path, monkeypatch):
    """Where memory lacks: four pieces of one pair, with their gradients and metrics averaged."""
    train(tmp_path / "whole", learning_rate=1e-3)
    monkeypatch.setattr(lib.learn.preference, "max_micro_batch", lambda *arguments, **options: 1)
    train(tmp_path / "pieces", learning_rate=1e-3)
    columns = ["loss", "margin", "reward_chosen", "preferred", "grad_norm"]
    whole, pieces = (metrics_of(tmp_path / name)[columns] for name in ("whole", "pieces"))
    pd.testing.assert_frame_equal(whole, pieces, rtol=1e-3, atol=1e-5)


def test_pairs_held_back_are_looked_at_and_not_trained_on(tmp_path):
    policy = tiny_policy()
    train_preference(policy, PAIRS, tmp_path, settings_of(steps=4), None, held_pairs=5)
    table = metrics_of(tmp_path)
    looked = table.loc[[1, 3], ["eval_margin", "eval_preferred"]]
    assert looked.notna().all(axis=None) and table.loc[[0, 2], "eval_margin"].isna().all()
    # the same margin, computed pair by pair
    pairs = with_prompts(PAIRS, "free")
    rest, held = hold_back(pairs, pairs, 5, 0)
    assert len(rest) == 7 and not set(rest["prompt"]) & set(held["prompt"])
    start = tiny_policy()[0]
    gaps = [
        logp(policy, row, "chosen", policy[0])
        - logp(policy, row, "chosen", start)
        - logp(policy, row, "rejected", policy[0])
        + logp(policy, row, "rejected", start)
        for row in held
    ]
    assert looked["eval_margin"].iloc[-1] == pytest.approx(0.1 * sum(gaps) / 5, rel=1e-3)
    assert looked["eval_preferred"].iloc[-1] == sum(gap > 0 for gap in gaps) / 5
    with pytest.raises(ValueError, match="13 pairs are to be held back, but there are 12"):
        hold_back(pairs, pairs, 13, 0)


def logp(policy, row, side, model):
    """log pi of one side of a pair, with its end token, in nats."""
    tokenizer = policy[1]
    prompt = tokenizer(row["prompt"]).input_ids
    answer = [*tokenizer(row[side], add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    with torch.no_grad():
        logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1)[range(len(answer)), answer].sum().item()


def completions(*rows):
    table = pd.DataFrame(rows, columns=["problem", "completion", "finish"])
    return judge(table.assign(nums=[(1, 2, 3)] * len(table), target=6))


def test_pairs_are_correct_against_incorrect_of_one_problem():
    rights = [f"{' ' * i}{RIGHT}" for i in range(3)]
    rows = [(0, text, "stop") for text in [*rights, rights[0], WRONG, "<answer>2</answer>"]]
    rows += [(1, RIGHT, "stop"), (2, WRONG, "stop"), (3, RIGHT, "stop"), (3, WRONG, "length")]
    pairs = preference_pairs(completions(*rows), most=4, seed=0).to_pandas()
    # two wrong ones; each completion is in one pair; repeats and cut ones are in none
    assert len(pairs) == 2
    assert set(pairs["chosen"]) <= set(rights) and set(pairs["rejected"]) == {
        WRONG,
        "<answer>2</answer>",
    }
    assert pairs["nums"].map(list).tolist() == [[1, 2, 3]] * 2 and pairs["target"].tolist() == [
        6,
        6,
    ]
    assert len(preference_pairs(completions(*rows), most=1, seed=0)) == 1
    drawn = [
        preference_pairs(completions(*rows), most=1, seed=seed).to_list() for seed in (*range(6), 0)
    ]
    assert (
        len({(pair["chosen"], pair["rejected"]) for [pair] in drawn}) > 2 and drawn[0] == drawn[-1]
    )


def test_pairs_come_in_the_order_of_the_schedule_in_the_style_of_the_run_at_a_constant_rate(
    tmp_path, monkeypatch
):
    trainers = []
    # no training
    monkeypatch.setattr(PreferenceTrainer, "fit", lambda self, *arguments: trainers.append(self))
    policy = tiny_policy()
    train_preference(
        policy, PAIRS, tmp_path, settings_of(seed=3), load_set("validation_200"), "words"
    )
    [trainer] = trainers
    asked = policy[1].batch_decode(list(trainer.train_dataset["prompt_ids"]))
    order = schedule(12, 6 * 4, seed=3).tolist()
    assert asked == [render_prompt([1, 2, 3], 6 + i, "words") for i in order]
    trainer.create_optimizer_and_scheduler(6)
    assert {scale(step) for scale in trainer.lr_scheduler.lr_lambdas for step in range(6)} == {1.0}


def test_the_references_merged_rows_give_the_same_pairs():
    rows = [(0, text, "stop") for text in [RIGHT, WRONG, RIGHT, LONG, WRONG, "<answer>2</answer>"]]
    judged = completions(*rows)
    merged = judged.drop_duplicates(["problem", "completion"])
    assert preference_pairs(judged, 4, 1).to_list() == preference_pairs(merged, 4, 1).to_list()


def test_no_pair_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no pair to learn from"):
        train(tmp_path, pairs=preference_pairs(completions((0, RIGHT, "stop")), 4, 0))
    with pytest.raises(ValueError, match="loss is 'ipoo': "):
        settings_of(loss="ipoo")


def test_hub_pairs_are_read_without_evaluation_problems(tmp_path, monkeypatch, capsys):
    """Without the hub's wording: they are asked in the style of their run, as SFT and RLOO are."""
    held_out = load_set("test_50")[0]
    asked = [([1, 2, 3], 6), (held_out["nums"], held_out["target"])]
    wording = "Using the numbers {}, make an equation that equals {}."
    queries = [wording.format(list(nums), target) for nums, target in asked]
    rows = [{"query": query, "response_ws": RIGHT, "response_ls": WRONG} for query in queries]
    pd.DataFrame(rows).to_json(tmp_path / "train.jsonl", orient="records", lines=True)
    monkeypatch.setattr(lib.learn.preference, "HUB_PAIRS", str(tmp_path))
    pairs = hub_pairs()
    assert pairs.to_list() == [{"nums": [1, 2, 3], "target": 6, "chosen": RIGHT, "rejected": WRONG}]
    assert "1 of 2 rows dropped" in capsys.readouterr().out
