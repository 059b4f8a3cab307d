"""`trainkit generate` and `trainkit chat` on a real run, in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from trainer import LIMIT, RECIPE, command, environment, trainkit, workplace

from trainkit.data.chat_template import EXAMPLE, ChatTemplate
from trainkit.data.vocabulary import load
from trainkit.errors import DONE, WRONG_INPUT
from trainkit.infer.chat import Conversation, closing

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
    around = environment(devices=devices)
    done = subprocess.run(
        command(*words), cwd=place, env=around, capture_output=True, text=True, timeout=LIMIT, input=stdin
    )
    assert (done.returncode, done.stderr) == (DONE, "")
    return done.stdout


def test_each_prompt_is_continued_as_often_as_asked_and_a_seed_tells_which_text_it_was(place: Path) -> None:
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


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["generate", "tny", "x"], "there is no run 'tny'\nhint: did you mean tiny?"),
        (["generate", "tiny/5", "x"], "there is no checkpoint of step 5; there are: 3, 6"),
        (["generate", "tiny", "x", "--top-p", "2"], "top_p must be above 0 and at most 1, found 2.0"),
        (["generate", "tiny", "x", "--stop", ""], "a stop string is empty"),
        (["generate", "tiny", "--file", "none.txt"], "none.txt: cannot read the prompts: No such file or directory"),
        (["generate", "tiny", "the cat " * 5000], "and the model's context has 8,192: there is no room for more"),
        (["chat", "tiny"], "or let the model go on with a text: --raw"),
        (["chat", "tiny", "--raw", "--system", "be kind"], "--raw knows no system's message"),
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
    words = ("chat", "tiny", "--seed", "3", "--max-tokens", "6")
    done = subprocess.run(
        command(*words), cwd=templated, env=environment(), capture_output=True, text=True, timeout=LIMIT, input=turns
    )
    assert done.returncode == DONE
    messages = json.loads((templated / "chat.jsonl").read_text())["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant"] * 2
    assert [m["content"] for m in messages[::2]] == ["hello", "what\nis it"]
    first, second = (m["content"] for m in messages[1::2])
    # what was forgotten changes nothing; what was not does
    assert done.stdout.startswith(f"{first}\n{second}\n{first}\n")
    assert "chats/new.jsonl: cannot be written: No such file" in done.stderr and "there is no /nonsense" in done.stderr


class Terminal:
    """A command in a pseudo-terminal of its own: keys in, what it printed out."""

    def __init__(self, place: Path, *words: str) -> None:
        self._keys, theirs = pty.openpty()
        begin = "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        self.process = subprocess.Popen(
            [sys.executable, "-c", begin + "os.execv(sys.argv[1], sys.argv[1:])", *command(*words)],
            cwd=place,
            env=environment() | {"TERM": "xterm", "COLUMNS": "200"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self._seen = ""

    def type(self, keys: str) -> None:
        os.write(self._keys, keys.encode())

    def until(self, text: str) -> str:
        """What came up to and with `text`, after what was waited for before."""
        deadline = time.monotonic() + LIMIT
        while text not in self._seen:
            assert time.monotonic() < deadline, f"this is all that came: {self._seen!r}"
            if select.select([self._keys], [], [], 1)[0]:
                with contextlib.suppress(OSError):
                    self._seen += os.read(self._keys, 65536).decode(errors="replace")
        before, _, self._seen = self._seen.partition(text)
        return before + text

    def close(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT)
        os.close(self._keys)


def test_in_a_terminal_ctrl_c_stops_an_answer_and_ctrl_d_ends(templated: Path) -> None:
    # the likeliest token of a model that has hardly learned is never the one that ends
    terminal = Terminal(templated, "chat", "tiny", "--temperature", "0", "--max-tokens", "8000")
    try:
        terminal.until("/help says what there is")
        terminal.until("> ")
        terminal.type("/help\n")
        terminal.until("forget what was said")
        terminal.until("> ")
        terminal.type("hello\n")
        terminal.until("hello\r\n")
        terminal.until("  ")
        terminal.type("\x03")
        terminal.until("stopped\x1b")
        terminal.until("> ")
        terminal.type("half a li\x03")
        terminal.until("Ctrl-D or /quit ends")
        terminal.until("> ")
        terminal.type("/system be kind\n")
        terminal.until("begun anew, with this message")
        terminal.until("> ")
        terminal.type("\x04")
        assert terminal.process.wait(LIMIT) == DONE
    finally:
        terminal.close()


def test_what_ends_an_answer_is_what_the_template_writes_after_it(place: Path) -> None:
    codec = load(place / "runs" / "tiny" / "tokenizer.json")
    assert closing(ChatTemplate(EXAMPLE, "example"), codec) == ((codec.end_of_text,), ())
    plain = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    assert closing(ChatTemplate(plain, "plain"), codec) == ((), ("\nuser:",))
    silent = "{% for m in messages %}{{ m.content + ' ' }}{% endfor %}"
    assert closing(ChatTemplate(silent, "silent"), codec) == ((), ())
    refusing = "{% if messages|length > 1 %}{{ raise_exception('one only') }}{% endif %}{{ messages[0].content }}"
    assert closing(ChatTemplate(refusing, "refusing"), codec) == ((), ())


def test_a_conversation_is_written_as_in_training_and_text_of_the_person_holds_no_special_role(place: Path) -> None:
    codec = load(place / "runs" / "tiny" / "tokenizer.json")
    talk = Conversation(ChatTemplate(EXAMPLE, "example"), codec, begin=(7,), system="be kind")
    talk.add("hello", "good day")
    ids = talk.prompt("and you?")
    assert ids[0] == 7 and ids.count(codec.end_of_text) == 1
    assert codec.decode(ids[1:]) == (
        "### system\nbe kind\n\n### user\nhello\n\n### assistant\ngood day<|endoftext|>\n\n"
        "### user\nand you?\n\n### assistant\n"
    )
