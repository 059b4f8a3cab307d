"""A model that was fine-tuned here and exported answers in transformers as it does here: same tokens, same text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reference import Reference
from trainer import trainkit, workplace

from trainkit.data.documents.chat_template import EXAMPLE
from trainkit.infer.generator import Generator, Request
from trainkit.infer.sampling import Sampling
from trainkit.infer.trained_model import open_run

COMMON = """
schema = 1
[run]
name = "{name}"
[optimizer]
learning_rate = {rate}
[schedule]
type = "cosine"
[track]
aim = false
[train]
batch_size = 8
steps = {steps}
[data]
sequence_length = {length}
[[data.train]]
"""
BASE = (
    COMMON.format(name="base", rate=1e-2, steps=20, length=32)
    + """
path = "text/*.txt"
[tokenizer]
train = { vocab_size = 320 }
[model]
type = "llama"
layers = 2
hidden = 64
heads = 4
kv_heads = 2
intermediate = 128
context_length = 160
rope_scaling = { type = "llama3", factor = 4.0, original_context = 32 }
"""
)
FINE = (
    COMMON.format(name="fine", rate=5e-3, steps=200, length=96)
    + """
path = "chats.jsonl"
document = { type = "chat", template = "chat.jinja" }
[model]
pretrained = "pretrained"
"""
)
ANSWERS = {"where is the cat": "on a mat", "who saw the rain": "one dog did", "what fell": "rain, over all roads"}
PROMPTS = ["the cat sat", "a dog", "rain\nfell over", "### user\nwhat fell\n\n### assistant\n"]
TOKENS = 24


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the run `fine` is, begun with the export of another, and its own export, `exported`."""
    place = workplace(tmp_path_factory.mktemp("answers"), BASE)
    (place / "chat.jinja").write_text(EXAMPLE)
    (place / "fine.toml").write_text(FINE)
    turns = [
        [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        for question, answer in ANSWERS.items()
    ]
    talks = [first + second for first in turns for second in turns]
    (place / "chats.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks * 8))
    for words in (["run", "tiny.toml", "--plain"], ["export", "base", "pretrained"],
                  ["run", "fine.toml", "--plain"], ["export", "fine", "exported"]):  # fmt: skip
        done = trainkit(place, *words)
        assert done.returncode == 0, done.stdout + done.stderr
    return place


def generated(place: Path, what: str) -> list[dict[str, object]]:
    done = trainkit(place, "generate", what, *PROMPTS, "--temperature", "0", "--max-tokens", str(TOKENS), "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_prompts_are_continued_by_the_same_tokens(
    place: Path,
    reference: Reference,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = reference.answer(place / "exported", PROMPTS, tokens=TOKENS)
    assert (told["kind"], told["dtype"]) == ("LlamaForCausalLM", "torch.float32")
    answers = [
        {"prompt": prompt, "text": answer["text"], "tokens": len(answer["ids"]), "ended": answer["ended"]}
        for prompt, answer in zip(PROMPTS, told["answers"], strict=True)
    ]
    for what in ("fine", "exported"):
        assert [
            {**{key: one[key] for key in ("prompt", "text", "tokens")}, "ended": one["reason"] == "end"}
            for one in generated(place, what)
        ] == answers
    # what it has learned, so that this says more than that both know nothing; it ends by itself
    assert answers[-1]["ended"] and answers[-1]["text"] == ANSWERS["what fell"]
    monkeypatch.chdir(place)
    served = open_run(place / "runs" / "fine")
    requests = [Request(served.prompt(prompt)) for prompt in PROMPTS]
    generator = Generator(served.model, served.codec, served.ends, served.mesh)
    found = generator.answers(requests, max_tokens=TOKENS, sampling=Sampling(temperature=0))
    assert [(list(request.ids), answer.ids) for request, answer in zip(requests, found, strict=True)] == [
        (answer["prompt"], answer["ids"]) for answer in told["answers"]
    ]


def test_a_conversation_goes_by_the_same_template_to_the_same_end(
    place: Path,
    reference: Reference,
) -> None:
    typed = "".join(f"{question}\n" for question in ANSWERS) + "/save talk.jsonl\n"
    done = trainkit(place, "chat", "fine", "--temperature", "0", "--max-tokens", str(TOKENS), text=typed)
    assert done.returncode == 0, done.stderr
    messages = json.loads((place / "talk.jsonl").read_text())["messages"]
    assert [message["content"] for message in messages[::2]] == list(ANSWERS)
    asked = [messages[: place + 1] for place in range(0, len(messages), 2)]
    answers = reference.answer(place / "exported", asked, tokens=TOKENS)["answers"]
    assert [answer["text"] for answer in answers] == [message["content"] for message in messages[1::2]]
    assert answers[0]["ended"] and answers[0]["text"] == ANSWERS["where is the cat"]
