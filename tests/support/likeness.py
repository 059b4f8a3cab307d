"""Tokenizers in the likeness of real families' ones: their kind of pieces, special tokens, ids and files, but small.

`write("gemma", directory)` makes a directory as a hub has it. Nothing here needs trainkit.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "key: value, and the other key: another value",
    "The cat sat on the mat. A dog barked at the cat, and the cat sat still.",
    "question: how many cats are there? answer: there are 42 cats\n\n",
    "User: hello there\nAssistant: good day to you, and how are you today?\n",
    "  def main():\n    return value\n",
    "be kind and answer the question with a value",
] * 3
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
#: How byte-level tokenizers of the GPT-4 kind cut a text.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# chat templates, which write what the families' own write

LLAMA_2_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}"
)
MISTRAL_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
)
CHATML_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_3_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<start_of_turn>' + role + '\n' + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Likeness:
    """What a family's directory on a hub holds of its tokenizer, and what there is to know of it."""

    content: str
    """tokenizer.json."""
    begin: str | None
    """The token that begins a text; None where there is none."""
    end: str
    """The token that ends a text, as the files say it."""
    config: dict[str, Any] = field(default_factory=dict)
    """tokenizer_config.json."""
    generation: dict[str, Any] = field(default_factory=dict)
    """generation_config.json."""
    template: str | None = None
    end_of_turn: str | None = None
    """The token with which the template ends an answer."""

    @property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_str(self.content)

    def id(self, name: str) -> int:
        found = self.tokenizer.token_to_id(name)
        assert found is not None, name
        return found


def write(name: str, directory: Path, *, without: Collection[str] = ()) -> Path:
    """Write a family's files but those named, and give back its tokenizer.json."""
    one = FAMILIES[name]()
    config = {key: value for key, value in (one.config | {"chat_template": one.template}).items() if value is not None}
    config |= {key: None for key, value in one.config.items() if value is None}
    files = {
        "tokenizer.json": one.content,
        "tokenizer_config.json": json.dumps(config),
        "generation_config.json": json.dumps(one.generation),
    }
    directory.mkdir(parents=True, exist_ok=True)
    for file in files.keys() - set(without):
        (directory / file).write_text(files[file], encoding="utf-8")
    return directory / "tokenizer.json"


# SentencePiece's BPE, with bytes for what it has no piece for


def _sentencepiece(specials: list[str], ordinary: list[str] = [], *, pieces: int = 200) -> dict[str, Any]:  # noqa: B006
    """Special tokens, added tokens that are not special, bytes, and pieces with ▁ for a space, in this order."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    words = Regex(r"▁?[\p{L}\p{N}]+|▁?[^\s\p{L}\p{N}▁]+|▁|\s")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(words, "isolated")
    first = [*specials, *ordinary, *BYTES]
    trainer = trainers.BpeTrainer(vocab_size=len(first) + pieces, special_tokens=first, show_progress=False)
    tokenizer.train_from_iterator([" " + text for text in CORPUS], trainer)
    content = json.loads(tokenizer.to_str())
    content["pre_tokenizer"] = None
    added = [token for token in content["added_tokens"] if token["content"] not in BYTES]
    content["added_tokens"] = [token | {"special": token["content"] in specials} for token in added]
    return content


def _with(content: dict[str, Any], **parts: Any) -> str:
    """A tokenizer's JSON with these parts."""
    tokenizer = Tokenizer.from_str(json.dumps(content))
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer.to_str()


def _putting(content: dict[str, Any], single: str) -> processors.TemplateProcessing:
    """Tokens around a text, such as "<s> $A"."""
    tokenizer = Tokenizer.from_str(json.dumps(content))
    names = [name for name in single.split() if name != "$A"]
    return processors.TemplateProcessing(single, None, [(name, tokenizer.token_to_id(name)) for name in names])


_SPACES = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
_LLAMA: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}


@cache
def llama_2() -> Likeness:
    """Llama 1 and 2, Mistral, Mixtral with `legacy`: a normaliser puts ▁ before every text and part of a text."""
    content = _sentencepiece(["<unk>", "<s>", "</s>"])
    text = _with(
        content,
        normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        decoder=decoders.Sequence([*_SPACES, decoders.Strip(" ", 1, 0)]),
        post_processor=_putting(content, "<s> $A"),
    )
    generation = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return Likeness(text, "<s>", "</s>", _LLAMA | {"legacy": True}, generation, LLAMA_2_TEMPLATE, "</s>")


@cache
def mistral() -> Likeness:
    """Mistral and Mixtral, without `legacy`: Metaspace puts ▁ before what begins a text, unless a space does."""
    content = _sentencepiece(["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])
    text = _with(
        content,
        normalizer=None,
        pre_tokenizer=pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False),
        decoder=decoders.Sequence([*_SPACES, decoders.Strip(" ", 1, 0)]),
        post_processor=_putting(content, "<s> $A"),
    )
    generation = {"bos_token_id": 1, "eos_token_id": 2}
    return Likeness(text, "<s>", "</s>", _LLAMA | {"legacy": False}, generation, MISTRAL_TEMPLATE, "</s>")


@cache
def gemma() -> Likeness:
    """Gemma: no ▁ is put before a text; `<s>` and `</s>` are HTML, ordinary tokens beside many others."""
    html = ["\n\n", "\n\n\n", "▁▁", "▁▁▁▁", "<table>", "</table>", "<b>", "</b>", "<s>", "</s>", "<strong>"]
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<unused0>", "<start_of_turn>", "<end_of_turn>"]
    content = _sentencepiece(specials, html)
    text = _with(
        content,
        normalizer=normalizers.Replace(" ", "▁"),
        pre_tokenizer=pre_tokenizers.Split(" ", "merged_with_previous"),
        decoder=decoders.Sequence(_SPACES),
        post_processor=_putting(content, "<bos> $A"),
    )
    config = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    generation = {"bos_token_id": 2, "eos_token_id": [1, 7], "pad_token_id": 0}
    return Likeness(text, "<bos>", "<eos>", config, generation, GEMMA_TEMPLATE, "<end_of_turn>")


# byte-level BPE, with the added tokens after the pieces


def _byte_level(specials: list[str], *, words: str | None = WORDS, first: Collection[str] = ()) -> Tokenizer:
    """Pieces, then the special tokens; those of `first` before the pieces."""
    tokenizer = Tokenizer(models.BPE())
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words is None)
    cut = [pre_tokenizers.Split(Regex(words), "isolated")] if words is not None else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cut, by_bytes]) if cut else by_bytes
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(first),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in specials])
    return tokenizer


@cache
def gpt2() -> Likeness:
    """GPT-2: one token, which may begin a text and ends it; nothing is put before a text."""
    tokenizer = _byte_level(["<|endoftext|>"], words=None)
    end = tokenizer.token_to_id("<|endoftext|>")
    names = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    generation = {"bos_token_id": end, "eos_token_id": end}
    return Likeness(tokenizer.to_str(), "<|endoftext|>", "<|endoftext|>", names, generation)


@cache
def llama_3() -> Likeness:
    """Llama 3, instructed: its `eos_token` is that of a turn, and generation ends with any of three."""
    headers = ["<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>"]
    tokenizer = _byte_level(["<|begin_of_text|>", "<|end_of_text|>", *headers])
    begin = processors.TemplateProcessing(
        "<|begin_of_text|> $A", None, [("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))]
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), begin])
    config = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
    ends = [tokenizer.token_to_id(name) for name in ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")]
    generation = {"bos_token_id": tokenizer.token_to_id("<|begin_of_text|>"), "eos_token_id": ends}
    text = tokenizer.to_str()
    return Likeness(text, "<|begin_of_text|>", "<|eot_id|>", config, generation, LLAMA_3_TEMPLATE, "<|eot_id|>")


@cache
def qwen() -> Likeness:
    """Qwen, instructed: its files say that no token begins a text, though generation_config.json names one."""
    tokenizer = _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    config = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None}
    end, turn = (tokenizer.token_to_id(name) for name in ("<|endoftext|>", "<|im_end|>"))
    generation = {"bos_token_id": end, "eos_token_id": [turn, end], "pad_token_id": end}
    return Likeness(tokenizer.to_str(), None, "<|im_end|>", config, generation, CHATML_TEMPLATE, "<|im_end|>")


@cache
def olmo() -> Likeness:
    """OLMo and GPT-NeoX: a token for padding and one for the end before the pieces, other added ones after them."""
    tokenizer = _byte_level(["|||IP_ADDRESS|||"], first=("<|endoftext|>", "<|padding|>"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in (2, 4)])
    config = {"bos_token": None, "eos_token": "<|endoftext|>", "pad_token": "<|padding|>"}
    return Likeness(tokenizer.to_str(), None, "<|endoftext|>", config, {"eos_token_id": 0, "pad_token_id": 1})


# Unigram and WordPiece


@cache
def unigram() -> Likeness:
    """T5: Unigram, an end after every text and no token before it."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
    config = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return Likeness(tokenizer.to_str(), None, "</s>", config, {"eos_token_id": 1, "pad_token_id": 0})


@cache
def wordpiece() -> Likeness:
    """BERT: WordPiece, [CLS] before a text and [SEP] after it, which its files do not call bos and eos."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    around = "[CLS] $A [SEP]"
    tokenizer.post_processor = processors.TemplateProcessing(around, f"{around} $B [SEP]", [("[CLS]", 2), ("[SEP]", 3)])
    config = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    return Likeness(tokenizer.to_str(), "[CLS]", "[SEP]", config)


FAMILIES = {
    "llama-2": llama_2,
    "mistral": mistral,
    "gemma": gemma,
    "gpt2": gpt2,
    "llama-3": llama_3,
    "qwen": qwen,
    "olmo": olmo,
    "unigram": unigram,
    "wordpiece": wordpiece,
}
