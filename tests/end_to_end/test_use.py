"""`trainkit generate` and `trainkit chat` on a real run, in processes of their own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal import Terminal
from tokenizers import Tokenizer
from trainer import LIMIT, RECIPE, command, environment, trainkit, workplace

from trainkit.cli.chat import Session
from trainkit.data.documents.chat_template import EXAMPLE, ChatTemplate
from trainkit.data.tokenizer.vocabulary import load
from trainkit.errors import DONE, WRONG_INPUT
from trainkit.events.tail import read
from trainkit.infer.text_format import Conversation, end_of_answer
from trainkit.infer.trained_model import open_pretrained, open_run

LONG = (
    RECIPE.replace("heads = 2", "heads = 2\ncontext_length = 8192")
    .replace("steps = 24", "steps = 6")
    .replace("keep_every = 6", "keep_every = 3")
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a run is that was trained for a moment: runs/tiny, with checkpoints of steps 3 and 6."""
    place = workplace(tmp_path_factory.mktemp("use"), LONG)
    done = trainkit(place, "run", "tiny.toml", "--plain")
    assert done.returncode == DONE, done.stderr
    return place


@pytest.fixture
def templated(place: Path) -> Iterator[Path]:
    """The same with a chat template."""
    template = place / "runs" / "tiny" / "chat_template.jinja"
    template.write_text(EXAMPLE)
    yield place
    template.unlink()


def said(place: Path, *words: str, stdin: str = "", devices: int = 1) -> str:
    """What a command prints; nothing else is printed."""
    done = trainkit(place, *words, text=stdin, devices=devices)
    assert (done.returncode, done.stderr) == (DONE, "")
    return done.stdout


def test_each_prompt_is_continued_as_often_as_asked_and_a_seed_shows_which_text_it_was(place: Path) -> None:
    options = ("--max-tokens", "12", "--top-k", "40", "--top-p", "0.98", "--min-p", "0.001")
    (place / "more.jsonl").write_text('"a dog"\n\n{"prompt": "rain\\n"}\n')
    lines = said(place, "generate", "tiny", "the cat", "--file", "more.jsonl", "--count", "2", "--seed", "4294967295",
                 "--json", *options).splitlines()  # fmt: skip
    answers = [json.loads(line) for line in lines]
    assert [(a["prompt"], a["seed"]) for a in answers] == [
        (prompt, seed) for prompt in ("the cat", "a dog", "rain\n") for seed in (2**32 - 1, 0)
    ]
    assert {a["reason"] for a in answers} <= {"length", "end"} and max(a["tokens"] for a in answers) == 12
    assert len({a["text"] for a in answers}) == 6
    # alone, from the standard input, and as it comes
    assert said(place, "generate", "runs/tiny/6", "--seed", "0", *options, stdin="a dog\n") == answers[3]["text"] + "\n"


def test_another_checkpoint_says_something_else_and_a_stop_string_is_not_said(place: Path) -> None:
    options = ("the cat", "--max-tokens", "40", "--seed", "1", "--temperature", "1.5")
    late, early = (said(place, "generate", f"tiny/{step}", *options) for step in (6, 3))
    assert late != early
    stop = late[10:14]
    assert said(place, "generate", "tiny", *options, "--stop", stop) == late[: late.index(stop)] + "\n"


def test_on_many_devices_that_share_the_parameters_and_from_an_export_it_says_the_same(place: Path) -> None:
    options = ("the cat", "a dog", "--count", "2", "--max-tokens", "10", "--temperature", "0", "--json")
    wanted = said(place, "generate", "tiny", *options, "--seed", "5")
    shutil.copytree(place / "runs" / "tiny", place / "runs" / "wide")
    recipe = place / "runs" / "wide" / "recipe.toml"
    text = recipe.read_text()
    assert "fsdp = 1" in text
    recipe.write_text(text.replace("fsdp = 1", "fsdp = 2"))
    assert said(place, "generate", "wide", *options, "--seed", "5", devices=4) == wanted
    said(place, "export", "tiny", "exported")
    assert said(place, "generate", "exported", *options, "--seed", "5") == wanted


def test_what_is_not_typed_is_as_the_model_s_own_generation_config_says_which_is_reported_once(place: Path) -> None:
    shutil.copytree(place / "runs" / "tiny", place / "runs" / "told")
    config = place / "runs" / "told" / "generation_config.json"
    config.write_text(json.dumps({"do_sample": False, "max_new_tokens": 5, "num_beams": 4}))
    wanted = said(place, "generate", "tiny", "the cat", "a dog", "--temperature", "0", "--max-tokens", "5")
    done = trainkit(place, "generate", "told", "the cat", "a dog")
    assert (done.returncode, done.stdout) == (DONE, wanted)
    path = "runs/told/generation_config.json"
    assert done.stderr.splitlines() == [
        f"as {path} says: temperature 0.0, max-tokens 5",
        f"{path} asks for what is not done here: num_beams = 4",
    ]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["generate", "tny", "x"], "there is no run 'tny'\nhint: did you mean tiny?"),
        (["generate", "tiny/5", "x"], "there is no checkpoint of step 5; there are: 3, 6"),
        (["generate", "tiny", "x", "--top-p", "2"], "top_p must be above 0 and at most 1, found 2.0"),
        (["generate", "tiny", "x", "--stop", ""], "an empty stop string"),
        (["generate", "tiny", "--file", "none.txt"], "none.txt: the prompts cannot be read: No such file or directory"),
        (["generate", "tiny", *["a dog"] * 16, "the cat " * 5000], "prompt 17 of 17 has "),
        (["chat", "tiny"], "or continue plain text with --raw"),
        (["chat", "tiny", "--raw", "--system", "be kind"], "--system and --raw exclude each other"),
    ],
    ids=["no run", "no step", "top-p", "empty stop", "no file", "too long", "no template", "raw system"],
)
def test_what_cannot_be_done_is_said_and_ends_with_2(place: Path, words: list[str], problem: str) -> None:
    done = trainkit(place, *words)
    assert (done.returncode, done.stdout) == (WRONG_INPUT, "")
    assert problem in done.stderr and "Traceback" not in done.stderr


def test_through_pipes_a_line_is_a_turn_and_only_answers_are_on_stdout(templated: Path) -> None:
    orders = "/save chats/new.jsonl\n/save chat.jsonl\n/reset\nhello\n//no order\n/nonsense\n/quit\n"
    turns = f"hello\nwhat\\\nis it\n{orders}no\n"
    done = trainkit(templated, "chat", "tiny", "--seed", "3", "--max-tokens", "6", text=turns)
    assert done.returncode == DONE
    messages = json.loads((templated / "chat.jsonl").read_text())["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant"] * 2
    assert [m["content"] for m in messages[::2]] == ["hello", "what\nis it"]
    first, second = (m["content"] for m in messages[1::2])
    # what was forgotten changes nothing; what was not does
    assert done.stdout.startswith(f"{first}\n{second}\n{first}\n")
    assert (
        "chats/new.jsonl: the conversation cannot be saved: No such file" in done.stderr
        and "there is no command /nonsense" in done.stderr
    )


def test_what_is_reported_beside_a_conversation_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    session = Session(None, None, None, stop=(), seed=None)  # type: ignore[arg-type]
    session.show("added to \x1b[2J.jsonl")
    assert capsys.readouterr() == ("", "added to ␛[2J.jsonl\n")


def test_in_a_terminal_ctrl_c_stops_an_answer_and_ctrl_d_ends(templated: Path) -> None:
    # the likeliest token of a model that has hardly learned is never the one that ends
    words = command("chat", "tiny", "--temperature", "0", "--max-tokens", "8000")
    around = environment() | {"TERM": "xterm"}
    terminal = Terminal(words, around, directory=templated, cells=(30, 200), controls=True, limit=LIMIT)
    try:
        terminal.until(rb"/help lists the commands.*> ")
        terminal.type(b"/help\n")
        terminal.until(rb"start a new conversation.*> ")
        terminal.type(b"hello\n")
        terminal.until(rb"hello\r\n.*  ")
        terminal.type(b"\x03")
        terminal.until(rb"stopped\x1b.*> ")
        # at any moment: readline alone hears one that comes before it waits for keys only with the next key
        for _ in range(20):
            terminal.type(b"half a li\x03")
            terminal.until(rb"Ctrl-D or /quit quits.*> ")
        terminal.type(b"/system be kind\n")
        terminal.until(rb"new conversation with this.*> ")
        terminal.type(b"\x04")
        assert terminal.end() == DONE
    finally:
        terminal.close()


def test_what_ends_an_answer_is_what_the_template_writes_after_it(place: Path) -> None:
    codec = load(place / "runs" / "tiny" / "tokenizer.json")
    assert end_of_answer(ChatTemplate(EXAMPLE, "example"), codec) == ((codec.end_of_text,), ())
    plain = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    assert end_of_answer(ChatTemplate(plain, "plain"), codec) == ((), ("\nuser:",))
    silent = "{% for m in messages %}{{ m.content + ' ' }}{% endfor %}"
    assert end_of_answer(ChatTemplate(silent, "silent"), codec) == ((), ())
    refusing = "{% if messages|length > 1 %}{{ raise_exception('one only') }}{% endif %}{{ messages[0].content }}"
    assert end_of_answer(ChatTemplate(refusing, "refusing"), codec) == ((), ())


def test_a_conversation_is_written_as_in_training_with_special_tokens_by_their_names_whoever_writes_these(
    place: Path,
) -> None:
    codec = load(place / "runs" / "tiny" / "tokenizer.json")
    talk = Conversation(ChatTemplate(EXAMPLE, "example"), codec, begin=(7,), system="be kind")
    talk.add("hello", "good day")
    ids = talk.prompt("and you?")
    assert ids[0] == 7 and ids.count(codec.end_of_text) == 1
    assert codec.decode(ids[1:]) == (
        "### system\nbe kind\n\n### user\nhello\n\n### assistant\ngood day<|endoftext|>\n\n"
        "### user\nand you?\n\n### assistant\n"
    )
    assert talk.prompt("and <|endoftext|> you?").count(codec.end_of_text) == 2


# a run that has learned conversations

TEMPLATE = EXAMPLE.replace("<|endoftext|>", "<|im_end|>")
TALKS = (
    RECIPE.replace('"tiny"', '"talks"')
    .replace("train = { vocab_size = 300 }", 'path = "made"')
    .replace('path = "text/*.txt"', 'path = "talks.jsonl"\ndocument = { type = "chat", template = "chat.jinja" }')
    .replace("held_out = 0.1", "encoding = { bos = true }")
    .replace("[evaluate]\nevery = 10\n", "")
    .replace("heads = 2", "heads = 2\ncontext_length = 128")
    .replace("steps = 24", "steps = 3")
    .replace("keep_every = 6", "keep_every = 3")
    .replace("every = 12", "every = 3\ntemperature = 0.0")
)


@pytest.fixture(scope="module")
def talks(place: Path) -> Path:
    """The run, whose texts begin with `<s>`, whose answers end with `<|im_end|>`, and which ends with token 5 or 8."""
    own = Tokenizer.from_file(str(place / "runs" / "tiny" / "tokenizer.json"))
    own.add_special_tokens(["<s>", "<|im_end|>"])
    (place / "made").mkdir()
    own.save(str(place / "made" / "tokenizer.json"))
    (place / "made" / "generation_config.json").write_text('{"eos_token_id": [5, 8]}')
    (place / "made" / "chat_template.jinja").write_text("{{ messages }}, which is not that of the recipe")
    (place / "chat.jinja").write_text(TEMPLATE)
    talk = {"messages": [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat on a mat"}]}
    (place / "talks.jsonl").write_text(f"{json.dumps(talk)}\n" * 40)
    (place / "talks.toml").write_text(TALKS)
    done = trainkit(place, "run", "talks.toml", "--plain")
    assert done.returncode == DONE, done.stderr
    return place / "runs" / "talks"


@pytest.fixture(scope="module")
def exported(place: Path, talks: Path) -> Path:
    """Its export, made when the template that the recipe names was another one already, and the end tokens too."""
    (place / "chat.jinja").write_text("{{ messages }}, and who would have thought so")
    (place / "made" / "chat_template.jinja").unlink()
    (place / "made" / "generation_config.json").write_text('{"eos_token_id": 6}')
    (place / "made" / "config.json").write_text('{"eos_token_id": [7]}')
    done = trainkit(place, "export", "talks", "talking")
    assert done.returncode == DONE, done.stderr
    return place / "talking"


def test_chat_and_export_have_the_template_of_training_whatever_has_become_of_its_source(
    place: Path, talks: Path, exported: Path
) -> None:
    assert (talks / "chat_template.jinja").read_text() == TEMPLATE
    trained, away = open_run(talks), open_pretrained(exported)
    assert trained.template().text == TEMPLATE
    prompts = [Conversation(each.template(), each.codec, each.begin).prompt("and you?") for each in (trained, away)]
    assert prompts[0] == prompts[1]
    begin = trained.codec.encode_batch(["<s>"], special_tokens=True)[0]
    assert trained.codec.decode(prompts[0]) == "<s>### user\nand you?\n\n### assistant\n"
    assert tuple(begin) == trained.begin == away.begin
    (place / "chat.jinja").unlink()
    assert open_run(talks).template() == trained.template()


def test_a_text_begins_and_ends_alike_in_the_run_in_its_export_and_in_transformers_files(
    talks: Path, exported: Path
) -> None:
    trained, away = open_run(talks), open_pretrained(exported)
    answer_ends, *_ = end_of_answer(trained.template(), trained.codec)
    assert trained.codec.end_of_text == 5 and set(trained.ends) == {5, 8, *answer_ends} and len(trained.ends) == 3
    assert set(away.ends) == set(trained.ends)
    for file in ("generation_config.json", "config.json"):
        assert json.loads((exported / file).read_text())["eos_token_id"] == list(trained.ends)
    written = Tokenizer.from_file(str(exported / "tokenizer.json"))
    for text in ("the cat", ""):
        assert written.encode(text).ids == trained.prompt(text) == away.prompt(text)


def test_a_sample_in_training_is_what_generate_says(place: Path, talks: Path) -> None:
    (sampled,) = [event for event in read(talks) if event["type"] == "sampled"]
    (line,) = said(
        place, "generate", "talks", "the cat", "--temperature", "0", "--max-tokens", "8", "--json"
    ).splitlines()
    assert json.loads(line)["text"] == sampled["text"] != ""
