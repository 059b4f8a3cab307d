"""Tasks of lm-eval on a trained model, beside transformers and by the command."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pytest
from reference import Reference
from trainer import trainkit, workplace

from trainkit.cli.eval import _harness
from trainkit.data.documents.chat_template import ChatTemplate
from trainkit.errors import TrainkitError
from trainkit.evaluation.likelihoods import Continuation, RowsAtOnce
from trainkit.infer.trained_model import open_run

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from trainkit.evaluation.harness_model import HarnessModel

TASK = """
task: cats
dataset_path: json
dataset_kwargs: {{data_files: {{test: {place}/cats.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
GROUP = """
group: both
task: [cats, {task: ends, dataset_path: json, dataset_kwargs: {data_files: {test: cats.jsonl}}, test_split: test,
  output_type: generate_until, doc_to_text: "{{question}}", doc_to_target: "{{choices[answer]}}",
  generation_kwargs: {until: [], max_gen_toks: 4, top_a: 3}}]
"""
ROWS = [
    {"question": "the cat sat", "choices": ["on a mat", "xq zz"], "answer": 0},
    {"question": "one dog", "choices": ["kk jj", "run far from"], "answer": 0},
]
LONG = "the cat sat on a mat and saw one dog run far from home while rain fell over all old roads near us " * 3
PAIRS = [("the cat sat", " on a mat"), ("", "one dog"), ("the end of this is blank  ", "here"), (LONG, " run far")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a short run, its export, and a task."""
    place = workplace(tmp_path_factory.mktemp("harness"), documents=20)
    short = ("train.steps=4", "sample.every=4", "evaluate.every=4", "schedule.warmup=0")
    for words in (
        ["run", "tiny.toml", "--plain", *(word for one in short for word in ("--set", one))],
        ["export", "tiny", "out"],
    ):
        done = trainkit(place, *words)
        assert done.returncode == 0, done.stderr
    (place / "tasks").mkdir()
    (place / "tasks" / "cats.yaml").write_text(TASK.format(place=place))
    (place / "tasks" / "both.yaml").write_text(GROUP)
    (place / "cats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return place


@pytest.fixture(scope="module")
def model(place: Path) -> HarnessModel:
    from trainkit.evaluation.harness_model import HarnessModel  # importing lm-eval takes seconds

    return HarnessModel(open_run(place / "runs" / "tiny"), rows=3, warn=pytest.fail)


def asked(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, given, index) for index, given in enumerate(arguments)]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def test_likelihoods_are_those_of_transformers(place: Path, model: HarnessModel, reference: Reference) -> None:
    """A context of blanks, none, and one that is cut off at the left; a text in windows, each token once."""
    from lm_eval.utils import get_rolling_token_windows

    most, prefix = model.max_length, model.prefix_token_id
    split = [([prefix], model.tok_encode(text)) if not context else model._encode_pair(context, text)
             for context, text in PAIRS]  # fmt: skip
    split += list(get_rolling_token_windows(model.tok_encode(LONG), prefix, most, context_len=1))
    windows = [([*context, *text] if n < len(PAIRS) else [*context, text[-1]])[-most - 1 :]
               for n, (context, text) in enumerate(split)]  # fmt: skip
    padded = np.array([window + [0] * (most + 1 - len(window)) for window in windows])
    logits, _ = reference.loads(place / "out", padded[:, :-1])
    expected = []
    for (_, text), window, row in zip(split, windows, log_softmax(logits.astype(np.float64)), strict=True):
        places = np.arange(len(window) - 1 - len(text), len(window) - 1)
        tokens = np.array(window)[places + 1]
        expected.append((row[places, tokens].sum(), bool((row[places].argmax(-1) == tokens).all())))
    found = model.loglikelihood(asked("loglikelihood", *PAIRS), disable_tqdm=True)
    np.testing.assert_allclose([one[0] for one in found], [one[0] for one in expected[: len(PAIRS)]], rtol=1e-5)
    assert [one[1] for one in found] == [one[1] for one in expected[: len(PAIRS)]]
    (rolling,) = model.loglikelihood_rolling(asked("loglikelihood_rolling", (LONG,)))
    assert len(expected) > len(PAIRS) + 2
    np.testing.assert_allclose(rolling, sum(one[0] for one in expected[len(PAIRS) :]), rtol=1e-5)


def test_the_likeliest_continuation_is_greedy_and_few_programs_are_compiled(model: HarnessModel) -> None:
    how = {"until": [], "max_gen_toks": 4}
    contexts = ["the cat", LONG, "", "one dog run far from"]
    texts = model.generate_until(asked("generate_until", *((context, how) for context in contexts)))
    ids = [model._context(context, model.generation(how, where="here")) for context in contexts]
    again = model._scorer.scores(
        [Continuation(one, model._codec.encode(text)) for one, text in zip(ids, texts, strict=True)]
    )
    assert {index: one.is_greedy for index, one in again} == dict.fromkeys(range(4), True)
    assert model._scorer._score._cache_size() <= 2  # 16 and 32 positions, always of as many rows
    assert [model.generate_until(asked("generate_until", (context, how))) for context in contexts] == [
        [t] for t in texts
    ]


def test_a_stop_string_ends_a_text(model: HarnessModel) -> None:
    (whole,) = model.generate_until(asked("generate_until", ("the cat", {"max_gen_toks": 8})))
    stop = whole[2:4]
    (cut,) = model.generate_until(asked("generate_until", ("the cat", {"until": [stop], "max_gen_toks": 8})))
    assert stop and cut == whole[: whole.index(stop)]
    with pytest.raises(TrainkitError, match="up to 256 tokens, and the model's context has 32"):
        model.generate_until(asked("generate_until", ("the cat", {})))


def test_without_memory_fewer_texts_are_generated_at_once_and_each_one_once(model: HarnessModel) -> None:
    how = {"max_gen_toks": 4}
    requests = asked("generate_until", *((f"{word} cat", how) for word in ("the", "one", "a", "no", "his")))
    wanted, alerts, sizes = model.generate_until(requests), list[str](), list[int]()
    answers = model._answers

    def without_memory(how: Any, chosen: Any) -> Any:
        sizes.append(len(chosen))
        if len(chosen) > 1:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.")
        return answers(how, chosen)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "_answers", without_memory)
        patch.setattr(model, "_rows", RowsAtOnce(3, alerts.append))
        assert model.generate_until(requests) == wanted
    assert sizes == [3] + [1] * 5
    assert alerts == ["no memory for 3 texts at once: continuing with 1"]


def test_repeated_requests_are_different_samples_and_always_the_same(model: HarnessModel) -> None:
    how = {"do_sample": True, "max_gen_toks": 8}
    texts, again = (
        model.generate_until(asked("generate_until", *[(context, how) for context in contexts]))
        for contexts in (["the cat"] * 4, ["a dog", *["the cat"] * 4])
    )
    assert len(set(texts)) > 1 and again[1:] == texts


@pytest.mark.parametrize(("content", "begun"), [("m.content", "the answer is "), ("m.content | trim", "the answer is")])
def test_an_answer_that_a_task_begins_is_not_ended(content: str, begun: str) -> None:
    from trainkit.evaluation.harness_model import render_to_continue

    text = "{% for m in messages %}<" + "{{ m.role }}>{{ " + content + " }}</s>\n{% endfor %}"
    asked = [{"role": "user", "content": "which?"}, {"role": "assistant", "content": "the answer is "}]
    found = render_to_continue(ChatTemplate(text, "here"), asked)
    assert found == f"<user>which?</s>\n<assistant>{begun}"
    without = ChatTemplate("{{ messages[0].content }}", "here")
    with pytest.raises(TrainkitError, match="omits the beginning of the answer"):
        render_to_continue(without, asked)


def test_the_command_writes_the_values_of_a_task_beside_the_other_results(place: Path) -> None:
    done = trainkit(place, "eval", "tiny", "--lm-eval", "cats", "--lm-eval-path", "tasks", "--limit", "2", "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads((place / "runs/tiny/results/lm-eval%2Fcats-4.json").read_text())
    printed = json.loads(done.stdout)
    assert printed == {"step": 4, "metrics": {"lm-eval/cats": record["metrics"]}}
    assert record["metrics"]["lm-eval/cats/acc"] == 0.5  # of two questions, one has the wrong answer
    assert (record["set"], record["documents"], record["limit"], record["fewshot"]) == ("lm-eval/cats", 2, 2, 0)


@pytest.mark.parametrize(
    ("group", "refused"),
    [
        ("group: mine\ntask: [cats, theirs]\n", None),
        ("group: mine\ntask: [{task: theirs, num_fewshot: 1}]\n", None),
        ("group: mine\ntask: [their]\n", "the group 'mine' has an unknown task 'their'"),
        ("group: mine\ntask: [{task: x, dataset_path: json, output_type: y}]\n", "cannot load the tasks: ValueError"),
    ],
)
def test_a_group_of_ones_own_may_have_tasks_of_lm_eval(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, refused: str | None
) -> None:
    from trainkit.evaluation import harness

    manager_of = harness.TaskManager
    for name, text in (
        ("mine/group", group),
        ("mine/cats", TASK),
        ("lm-eval/theirs", TASK.replace("cats\n", "theirs\n")),
    ):
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.format(place=place) if text.startswith("\ntask") else text)

    def quickly(include_path: str, *, include_defaults: bool) -> Any:
        paths = [tmp_path / "lm-eval"] * include_defaults + [Path(include_path)]
        return manager_of(include_path=paths, include_defaults=False)

    monkeypatch.setattr(harness, "TaskManager", quickly)
    options = harness.HarnessOptions(("mine",), tmp_path / "mine")
    if refused is None:
        (mine,) = harness._load(*harness._find_tasks(options), options)
        assert [task.task_name for task in mine.get_all_tasks()][-1] == "theirs"
    else:
        with pytest.raises(TrainkitError, match=refused):
            harness._load(*harness._find_tasks(options), options)


def test_what_is_not_supported_is_refused_by_the_name_of_its_task_before_anything_is_computed(place: Path) -> None:
    done = trainkit(place, "eval", "tiny", "--lm-eval", "both", "--lm-eval-path", "tasks")
    assert done.returncode == 2 and "top_a, which trainkit does not support" in done.stderr
    assert "--lm-eval both::ends" in done.stderr and "supported are until, do_sample, temperature" in done.stderr
    assert not (place / "runs/tiny/results/lm-eval%2Fboth-4.json").exists()


def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("harness", "harness_model"):
        monkeypatch.delattr(f"trainkit.evaluation.{name}", raising=False)
        monkeypatch.delitem(sys.modules, f"trainkit.evaluation.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", None)
    with pytest.raises(TrainkitError, match="need lm_eval, which is not installed") as error:
        _harness()
    assert "uv sync --extra lm-eval" in error.value.hint
