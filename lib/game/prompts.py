"""The prompts: one text per problem, in one of several styles.

A style is a wording, with a chat template around it if there is one, and the token that ends an
answer."""

from collections.abc import Sequence
from fractions import Fraction

PROMPTS = {  # style -> wording
    "free": "Numbers: [{nums}]\nTarget: {target}\n",
    "program": "Numbers: [{nums}]\nTarget: {target}\nProgram\n",
    "trace": "Numbers: [{nums}]\nTarget: {target}\nTrace\n",
    "pick": "Numbers: [{nums}]\nTarget: {target}\nPick\n",
    "value": "Numbers: [{nums}]\nTarget: {target}?",  # asks about a state: can the target be made?
    # Prompts in words, for pretrained models: the wording of the public 3-to-4-number data
    # (TinyZero's), to which the hub's demonstrations are answers, and a request for a program as
    # paper `program` describes it.
    "words": (
        "A conversation between User and Assistant. The user asks a question, and the Assistant "
        "solves it. The "
        "assistant first thinks about the reasoning process in the mind and then provides the "
        "user with the answer.\n"
        "User: Using the numbers [{nums}], create an equation that equals {target}. You can use "
        "basic arithmetic "
        "operations (+, -, *, /) and each number can only be used once. Show your work in "
        "<think> </think> tags. And "
        "return the final answer in <answer> </answer> tags, for example <answer> (1 + 2) / 3 "
        "</answer>.\n"
        "Assistant: Let me solve this step by step.\n"
    ),
    "program_words": (
        "User: Using the numbers [{nums}], write a program that computes {target}. One "
        "assignment a line, of the form "
        "variable = operand operator operand: an operand is one of the numbers or an earlier "
        "variable, an operator one "
        "of +, -, *, /. Use each number exactly once; the last line assigns to answer. Return "
        "the program in <answer> "
        "</answer> tags, and write nothing else: no words, no reasoning.\nAssistant:\n"
    ),
}

# The chat template of Qwen2.5 around a sentence, and the opening of the answer. This is the text
# that the tokenizer's own `apply_chat_template` gives; it is written here so that a prompt is plain
# text for every part of the project.
CHAT = (
    "<|im_start|>system\nYou are a helpful "
    "assistant.<|im_end|>\n<|im_start|>user\n{sentence}<|im_end|>\n"
    "<|im_start|>assistant\n{opening}"
)
QUESTION = (
    "Using the numbers [{spaced}], create an equation that equals {target}. You can use basic "
    "arithmetic operations "
    "(+, -, *, /) and each number can only be used once. Show your work in <think> </think> "
    "tags. And return the final "
    "answer in <answer> </answer> tags, for example <answer> (1 + 2) / 3 </answer>."
)
PROMPTS["chat"] = CHAT.format(sentence=QUESTION, opening="Let me solve this step by step.\n")
PROMPTS["program_chat"] = CHAT.format(
    sentence=PROMPTS["program_words"].removeprefix("User: ").removesuffix("\nAssistant:\n"),
    opening="",
)
# the other styles end with the tokenizer's end token
ENDS = {"chat": "<|im_end|>", "program_chat": "<|im_end|>"}


def render_prompt(nums: Sequence, target: int | Fraction, style: str = "free") -> str:
    """The prompt of a policy for one problem, in a style of `PROMPTS`.

    >>> render_prompt((44, 19, 35), 98)
    'Numbers: [44, 19, 35]\\nTarget: 98\\n'
    """
    texts = list(map(str, nums))
    width = max(map(len, texts), default=0)
    # as numpy prints arrays: the hub's prompts look so
    aligned = " ".join(text.rjust(width) for text in texts)
    return PROMPTS[style].format(nums=", ".join(texts), spaced=aligned, target=target)
