"""Tasks of lm-eval, EleutherAI's evaluation harness (Gao et al. 2021), on a run's model. Needs the extra `lm-eval`.

`HarnessModel` answers requests as lm-eval's own model for transformers does, so that a checkpoint and its export get
the same values.
"""

from __future__ import annotations

import difflib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from trainkit.data.documents.chat_template import ChatTemplate, render
from trainkit.errors import TrainkitError
from trainkit.evaluation.evaluate_run import recipe_to_evaluate
from trainkit.evaluation.likelihoods import Continuation, Likelihood, Scorer
from trainkit.evaluation.results import write_results
from trainkit.infer.generator import Request
from trainkit.infer.sampling import Sampling
from trainkit.infer.trained_model import TrainedModel, open_run

#: Texts at once where `[evaluate]` has no batch_size.
ROWS = 16
#: The keys under which a task says how many tokens are generated at most, and how many where it says nothing: those of
#: lm-eval's model for transformers.
_MOST_TOKENS, _USUAL_MOST = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"), 256

#: Marks the end of a message that the model continues; transformers uses the same.
_MARK = "CONTINUE_FINAL_MESSAGE_TAG"


@dataclass(frozen=True)
class HarnessOptions:
    """What of lm-eval is wanted."""

    tasks: tuple[str, ...]
    """Names of tasks, groups or tags; `*` stands for any letters."""
    path: Path | None = None
    """A directory with tasks of one's own, as YAML."""
    limit: int | None = None
    """The number of documents of each task; all where not given."""
    fewshot: int | None = None
    """The number of examples before each question; the task's own where not given."""
    chat: bool = False
    """Whether the model's chat template writes the questions."""


class HarnessModel(TemplateLM):
    """A trained causal model, as lm-eval asks it."""

    def __init__(self, trained: TrainedModel, *, rows: int = ROWS, warn: Callable[[str], None]) -> None:
        """Raises TrainkitError where the model continues no texts."""
        super().__init__()
        if trained.spec.kind != "causal":
            raise TrainkitError(
                f'model.type = "{trained.spec.type}" ({trained.spec.kind}) continues no texts',
                where=str(trained.where),
                hint="--lm-eval is for causal models",
            )
        self._trained, self._codec = trained, trained.codec
        self._generator = trained.generator()
        self._scorer = Scorer(trained.model, trained.mesh, rows=rows, warn=warn)

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self._codec.end_of_text

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without a context."""
        begin = self._codec.beginning_of_text
        return self.eot_token_id if begin is None else begin

    @property
    def max_length(self) -> int:
        """The longest text that the model reads, in tokens."""
        return self._trained.model.context_length

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the tokens of a text, with those before every text that the model has learned, unless the text begins
        with them or `add_special_tokens` is False."""
        (ids,) = self._codec.encode_batch([string], special_tokens=True)
        begin = self._trained.begin
        return ids if add_special_tokens is False or tuple(ids[: len(begin)]) == begin else [*begin, *ids]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str] | None, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        found: dict[int, Likelihood] = {}
        for index, one in self._scorer.scores([Continuation(context, tokens) for _, context, tokens in requests]):
            found[index] = one
            if (texts := requests[index][0]) is not None:
                self.cache_hook.add_partial("loglikelihood", texts, tuple(one))
        return [(found[index].log_likelihood, found[index].is_greedy) for index in range(len(requests))]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of each text, in nats: of every token once, in windows of the model's context."""
        windows: list[tuple[None, list[int], list[int]]] = []
        owners: list[int] = []
        for number, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            found = get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, context_len=1)
            parts = [(None, *make_disjoint_window(window)) for window in found]
            windows += parts
            owners += [number] * len(parts)
        totals = [0.0] * len(requests)
        for owner, (likelihood, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            totals[owner] += likelihood
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the text that continues each context, up to a stop string or as many tokens as the task allows."""
        texts = [""] * len(requests)
        seeds = _count_before([request.args[0] for request in requests])  # tasks with repeats ask for several samples
        for how, numbers in _alike([request.args[1] for request in requests]):
            contexts = {number: self._context(requests[number].args[0], how.max_tokens) for number in numbers}
            longest_first = sorted(numbers, key=lambda number: -len(contexts[number]))
            for at in range(0, len(longest_first), self._scorer.rows):
                chosen = longest_first[at : at + self._scorer.rows]
                answers = self._generator.answers(
                    [Request(contexts[number], seeds[number]) for number in chosen],
                    max_tokens=how.max_tokens,
                    sampling=how.sampling,
                    stop=how.stop,
                )
                for number, answer in zip(chosen, answers, strict=True):
                    texts[number] = answer.text
                    self.cache_hook.add_partial("generate_until", requests[number].args, answer.text)
        return texts

    def _context(self, text: str, max_tokens: int) -> list[int]:
        """Return the last tokens of a text, so few that the model can still write `max_tokens` after them."""
        room = self.max_length - max_tokens
        if room < 1:
            raise TrainkitError(
                f"the task generates up to {max_tokens:,} tokens, and the model's context has {self.max_length:,}",
                where="--lm-eval",
                hint="set max_gen_toks in generation_kwargs of the task's YAML",
            )
        return (self.tok_encode(text) or [self.prefix_token_id])[-room:]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return a conversation as the model's template writes it. Raises TrainkitError if it cannot.

        Without `add_generation_prompt` the last message is the beginning of the answer, which the model continues.
        """
        if not add_generation_prompt:
            return render_to_continue(self._trained.template(), chat_history)
        return render(self._trained.template(), chat_history, add_generation_prompt=True)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the Jinja of the model's template where one is asked for. Raises TrainkitError if it has none."""
        return self._trained.template().text if chat_template else None

    @property
    def tokenizer_name(self) -> str:
        """What tells this tokenizer from others."""
        return self._codec.fingerprint


@dataclass(frozen=True)
class _Generation:
    """How a request's text is generated."""

    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]

    @classmethod
    def of(cls, wanted: Mapping[str, Any]) -> _Generation:
        """Return it from a task's generation_kwargs. Raises TrainkitError for what is not known."""
        left = dict(wanted)
        until = left.pop("until", None) or []
        most = [value for key in _MOST_TOKENS if (value := left.pop(key, None)) is not None]
        temperature, samples = float(left.pop("temperature", 0.0)), left.pop("do_sample", None)
        if samples is False:
            temperature = 0.0
        elif samples and not temperature:
            temperature = 1.0
        kept = {key: left.pop(key) for key in ("top_k", "top_p", "min_p", "repetition_penalty") if key in left}
        if left:
            raise TrainkitError(
                f"generation_kwargs of the task has what is not done here: {', '.join(sorted(left))}",
                where="--lm-eval",
                hint=f"known are until, do_sample, temperature, top_k, top_p, min_p, repetition_penalty and"
                f" {', '.join(_MOST_TOKENS)}",
            )
        stop = (until,) if isinstance(until, str) else tuple(filter(None, until))
        return cls(int(most[0]) if most else _USUAL_MOST, Sampling(temperature=temperature, **kept), stop)


def render_to_continue(template: ChatTemplate, messages: Sequence[Mapping[str, str]]) -> str:
    """Return a conversation up to the end of its last message, as transformers does with `continue_final_message`.

    Raises:
        TrainkitError: the template cannot write it, or omits the last message.
    """
    *before, last = messages
    text = render(template, [*before, {**last, "content": f"{last['content']}{_MARK} "}])
    begin, mark, end = text.rpartition(_MARK)
    if not mark:
        raise TrainkitError(
            "the chat template omits the beginning of the answer that the task gives",
            where="--chat",
            hint=f"the template is {template.origin}",
        )
    return begin if end.startswith(" ") else begin.rstrip()  # the template takes blanks from the ends of messages


def _count_before(texts: Sequence[str]) -> list[int]:
    """Return of each text how many equal ones come before it."""
    seen: Counter[str] = Counter()
    found: list[int] = []
    for text in texts:
        found.append(seen[text])
        seen[text] += 1
    return found


def _alike(wanted: Sequence[Mapping[str, Any]]) -> Iterator[tuple[_Generation, list[int]]]:
    """Yield each way to generate, and the numbers of the requests that are generated so."""
    hows = [_Generation.of(each) for each in wanted]
    order = sorted(range(len(hows)), key=lambda number: repr(hows[number]))
    for how, numbers in groupby(order, key=lambda number: hows[number]):
        yield how, list(numbers)


def evaluate_tasks(
    directory: Path,
    step: int | None,
    options: HarnessOptions,
    *,
    average: bool | None = None,
    overrides: Sequence[str] = (),
    warn: Callable[[str], None],
) -> tuple[int, dict[str, dict[str, float]]]:
    """Evaluate a run's checkpoint on tasks of lm-eval, write `results/lm-eval%2FTASK-STEP.json` for each, and return
    the checkpoint's step and the metrics of each task by `lm-eval/TASK`.

    Args:
        step: None for the newest checkpoint.
        average: as for `weights_of`.
        overrides: `evaluate.batch_size=N`, the number of texts at once.

    Raises:
        TrainkitError: there is no such checkpoint or task, the model is not causal, or the data of a task cannot be
            read.
    """
    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    manager, names = _find_tasks(options)
    rows = recipe_to_evaluate(directory, overrides).evaluate.batch_size or ROWS
    trained = open_run(directory, step, average=average)
    assert trained.step is not None, "a run's model is that of a step"
    model = HarnessModel(trained, rows=rows, warn=warn)
    if options.chat:
        trained.template()
    try:
        found = simple_evaluate(
            model,
            tasks=names,
            num_fewshot=options.fewshot,
            limit=options.limit,
            task_manager=manager,
            apply_chat_template=options.chat,
            log_samples=False,
        )
    except OSError as error:  # no connection among them
        raise TrainkitError(
            f"the data of a task cannot be read: {error}", where=f"--lm-eval {','.join(options.tasks)}"
        ) from error
    assert found is not None, "there is one process"
    results: dict[str, dict[str, float]] = {}
    for task, values in found["results"].items():
        name = f"lm-eval/{task}"
        results[name] = {f"{name}/{key}": value for key, value in _metrics(values)}
        write_results(directory, name, trained.step, results[name], details=_details(found, task, options))
    return trained.step, results


def _find_tasks(options: HarnessOptions) -> tuple[TaskManager, list[str]]:
    """Return where lm-eval finds tasks, and the names of the wanted ones. Raises TrainkitError for an unknown one."""
    path = options.path
    if path is not None and not path.is_dir():
        raise TrainkitError("there is no such directory", where=f"--lm-eval-path {path}")
    # reading lm-eval's thousands of tasks takes seconds
    for defaults in (False, True) if path is not None else (True,):
        manager = TaskManager(include_path=str(path) if path else None, include_defaults=defaults)
        matches = {task: manager.match_tasks([task]) for task in options.tasks}
        if all(matches.values()):
            return manager, list(dict.fromkeys(name for found in matches.values() for name in found))
    unknown = next(task for task, found in matches.items() if not found)
    near = difflib.get_close_matches(unknown, manager.all_tasks, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "lm-eval ls tasks   lists them"
    raise TrainkitError(f"lm-eval has no task '{unknown}'", where="--lm-eval", hint=hint)


def _metrics(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a task by `METRIC`, or `METRIC/FILTER` where a filter has been at the answers."""
    for key, value in values.items():
        metric, comma, filter_ = key.partition(",")
        if comma and isinstance(value, int | float):
            yield (metric if filter_ == "none" else f"{metric}/{filter_}"), float(value)


def _details(found: Mapping[str, Any], task: str, options: HarnessOptions) -> dict[str, Any]:
    """Return how the values of a task were obtained."""
    return {
        "lm_eval": version("lm_eval"),
        "task_version": found["versions"].get(task),
        "fewshot": found["n-shot"].get(task),
        "documents": found["n-samples"].get(task, {}).get("effective"),
        "limit": options.limit,
        "chat_template": options.chat,
    }
