"""A trained model as lm-eval asks it: log-likelihoods, and texts that follow a context. Needs the extra `lm-eval`.

It answers as lm-eval's own model for transformers does, so that a checkpoint and its export get the same values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from trainkit.data.documents.chat_template import ChatTemplate, render
from trainkit.data.hub_files import read_object
from trainkit.errors import TrainkitError
from trainkit.evaluation.generation_kwargs import HarnessGeneration, read_generation_kwargs
from trainkit.evaluation.likelihoods import Continuation, Likelihood, RowsAtOnce, Scorer, TargetScorer
from trainkit.hub.tokenizer import GENERATION
from trainkit.infer.beam_search import BeamSearch
from trainkit.infer.generator import Answer, Generator, Request
from trainkit.infer.seq2seq import start_of
from trainkit.infer.settings import rules_beside
from trainkit.infer.trained_model import TrainedModel

#: Texts at once where `[evaluate]` has no batch_size.
ROWS = 16
#: The most tokens of a source, and of a target, where an encoder-decoder sets no limit: that of lm-eval.
_NO_LIMIT = 2048
#: Marks the end of a message that the model continues; transformers uses the same.
_MARK = "CONTINUE_FINAL_MESSAGE_TAG"


class HarnessModel(TemplateLM):
    """A trained causal model or encoder-decoder, as lm-eval asks it."""

    def __init__(self, trained: TrainedModel, *, rows: int = ROWS, warn: Callable[[str], None]) -> None:
        """Compute `rows` texts at once, fewer when memory runs out; `warn` is called when it does."""
        super().__init__()
        self._trained, self._codec = trained, trained.codec
        self._rows = RowsAtOnce(rows, warn)
        self._scorer: Scorer
        self._search: BeamSearch | None = None
        parts = trained.model, trained.mesh, self._rows
        if trained.spec.kind == "encoder-decoder":
            self.backend = "seq2seq"  # then lm-eval encodes contexts and continuations apart
            self._search = _search_beside(trained)
            self._scorer = TargetScorer(*parts, self.max_length, start=start_of(trained.spec, trained.codec))
        else:
            self._scorer = Scorer(*parts, self.max_length)
        self._generators: dict[BeamSearch, Generator] = {}

    @property
    def reads_sources(self) -> bool:
        """Whether a context is a source that the model reads, instead of a text that it continues."""
        return self._search is not None

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
        """The longest text, or the longest source and target, that the model reads, in tokens."""
        if self._trained.spec.kind != "encoder-decoder":
            return self._trained.model.context_length
        return getattr(self._trained.spec, "context_length", None) or _NO_LIMIT

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the tokens of a text, with those before every text, and after every source, that the model has
        learned, unless the text has them or `add_special_tokens` is False."""
        if self.reads_sources and add_special_tokens is not False:
            return self._trained.prompt(string)
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
        """Return the log-likelihood of each text, in nats: of every token once, in windows of the model's context.

        Raises:
            TrainkitError: the model is an encoder-decoder.
        """
        self.check_rolling("--lm-eval")
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

    def check_rolling(self, where: str) -> None:
        """Raise TrainkitError if the model cannot score whole texts; `where` is the place that the error names."""
        if self.reads_sources:
            raise TrainkitError(
                f"the task scores whole texts (loglikelihood_rolling), and an encoder-decoder"
                f' (model.type = "{self._trained.spec.type}") scores only targets of a source',
                where=where,
                hint="choose tasks of output_type multiple_choice, loglikelihood or generate_until",
            )

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the text that continues each context, or the target of each source, up to a stop string or as many
        tokens as the task allows."""
        texts = [""] * len(requests)
        seeds = _count_before([request.args[0] for request in requests])  # tasks with repeats ask for several samples
        for how, numbers in self._alike([request.args[1] for request in requests]):
            asked = [
                (number, Request(self._context(requests[number].args[0], how), seeds[number])) for number in numbers
            ]
            asked.sort(key=lambda one: -len(one[1].ids))
            for chosen, answers in self._rows.batches(asked, partial(self._answers, how)):
                for (number, _), answer in zip(chosen, answers, strict=True):
                    texts[number] = answer.text
                    self.cache_hook.add_partial("generate_until", requests[number].args, answer.text)
        return texts

    def generation(self, kwargs: Mapping[str, Any], *, where: str) -> HarnessGeneration:
        """Return how texts are generated for a task with these `generation_kwargs`; `where` is the place that errors
        name.

        Raises:
            TrainkitError: a setting is not supported, or the model's context has no room for a prompt and so many
                tokens.
        """
        how = read_generation_kwargs(kwargs, where=where, search=self._search)
        if not self.reads_sources and how.max_tokens >= self.max_length:
            raise TrainkitError(
                f"the task generates up to {how.max_tokens:,} tokens, and the model's context has {self.max_length:,}",
                where=where,
                hint="set max_gen_toks in generation_kwargs of the task's YAML",
            )
        return how

    def _alike(self, wanted: Sequence[Mapping[str, Any]]) -> Iterator[tuple[HarnessGeneration, list[int]]]:
        """Yield each way to generate, and the numbers of the requests that are generated so."""
        hows = [self.generation(each, where="--lm-eval") for each in wanted]
        order = sorted(range(len(hows)), key=lambda number: repr(hows[number]))
        for how, numbers in groupby(order, key=lambda number: hows[number]):
            yield how, list(numbers)

    def _answers(self, how: HarnessGeneration, asked: Sequence[tuple[int, Request]]) -> list[Answer]:
        if how.search not in self._generators:
            self._generators[how.search] = self._trained.generator(how.search)
        requests = [request for _, request in asked]
        return self._generators[how.search].answers(
            requests, max_tokens=how.max_tokens, sampling=how.sampling, stop=how.stop
        )

    def _context(self, text: str, how: HarnessGeneration) -> list[int]:
        """Return the last tokens of a text, as many as the model reads; a text to continue also leaves room for what
        is generated."""
        room = self.max_length - (0 if self.reads_sources else how.max_tokens)
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


def _search_beside(trained: TrainedModel) -> BeamSearch:
    """Return how the generation_config.json of a run says that targets are searched for, as `generate` reads it."""
    said = read_object(trained.where / GENERATION, missing_ok=True)
    found: dict[str, Any] = {"rules": rules_beside(trained.where)}
    for ours, theirs, kinds in (
        ("beams", "num_beams", int),
        ("length_penalty", "length_penalty", int | float),
        ("early_stopping", "early_stopping", bool),
    ):
        if isinstance(said.get(theirs), kinds):
            found[ours] = said[theirs]
    return BeamSearch(**found)


def _count_before(texts: Sequence[str]) -> list[int]:
    """Return of each text how many equal ones come before it."""
    seen: Counter[str] = Counter()
    found: list[int] = []
    for text in texts:
        found.append(seen[text])
        seen[text] += 1
    return found
