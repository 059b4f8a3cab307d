"""Tasks that learn from judgements of answers: one of two is preferred, or one is good or bad."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from trainkit.recipe.families.model import Head, Kind, ModelSpec
from trainkit.recipe.sections.data import Data
from trainkit.recipe.sections.source import document_of
from trainkit.recipe.sections.task_spec import TaskSpec, check_last_token
from trainkit.recipe.spec import LossWeight, PositiveRatio


class Preference(TaskSpec):
    """Learn to prefer one answer to another from pairs (DPO, Rafailov et al. 2023, and its relatives)."""

    type: Literal["preference"]
    loss: Literal["dpo", "robust", "ipo", "orpo", "simpo", "cpo"] = "dpo"
    """`"dpo"` (Rafailov et al. 2023), `"robust"` (Chowdhury et al. 2024: DPO with the share of wrong labels known) and
    `"ipo"` (Azar et al. 2023, of log-likelihoods per token) compare with a frozen reference: the parameters at
    the start of the run, without its adapter. `"orpo"` (Hong et al. 2024), `"simpo"`
    (Meng et al. 2024) and `"cpo"` (Xu et al. 2024) need none."""
    beta: PositiveRatio = 0.1
    """How much the reward counts: reward = beta x log-likelihood, less that of the reference where there is one. IPO
    calls it tau, ORPO lambda. SimPO is usually run with 2."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """For `"dpo"`, `"robust"`, `"simpo"` and `"cpo"`: the share of pairs that are assumed to be labelled the wrong way
    round (Mitchell 2023, conservative DPO)."""
    per_token: bool = False
    """For `"dpo"` and `"robust"`: whether to divide a reward by the tokens of its answer, so that long answers count no
    more than short ones (Lambert et al. 2024, Tulu 3)."""
    margin: LossWeight = 0.0
    """By how much the rewards are to differ: gamma of `"simpo"`."""
    likelihood: LossWeight = 1.0
    """How much the mean cross-entropy of the chosen answer's tokens counts beside the preference; of `"cpo"` and
    `"orpo"`."""
    likelihood_of_prompt: bool = False
    """Whether that mean includes the tokens of the prompt, as in the code of ORPO's authors and in trl's ORPO."""

    implementation: ClassVar[str] = "trainkit.tasks.preference"
    documents: ClassVar[frozenset[str]] = frozenset({"preference", "preference-chat"})
    models: ClassVar[frozenset[Kind]] = frozenset({"causal"})
    reports: ClassVar[frozenset[str]] = frozenset(
        {
            "loss",
            "reward_accuracy",
            "reward_margin",
            "chosen_reward",
            "rejected_reward",
            "chosen_log_likelihood",
            "rejected_log_likelihood",
        }
    )

    @property
    def reference(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of the reference's log-likelihoods of the answers; empty for losses without a reference."""
        return {"reference": (2,)} if self.loss in ("dpo", "robust", "ipo") else {}

    def check_sizes(self, model: ModelSpec, data: Data) -> None:
        """Raise ValueError if the documents have margins, which only rewards use."""
        for number, source in enumerate(data.train):
            if getattr(document_of(source), "margin", None) is not None:
                raise ValueError(
                    f'data.train.{number}.document.margin changes nothing with task.type = "preference": leave it out,'
                    ' or write task.type = "reward"'
                )

    @model_validator(mode="after")
    def _keys_fit_the_loss(self) -> Preference:
        of = {
            "label_smoothing": ("dpo", "robust", "simpo", "cpo"),
            "per_token": ("dpo", "robust"),
            "margin": ("simpo",),
            "likelihood": ("cpo", "orpo"),
            "likelihood_of_prompt": ("cpo", "orpo"),
        }
        for key, losses in of.items():
            if getattr(self, key) != type(self).model_fields[key].default and self.loss not in losses:
                named = " or ".join(f'"{name}"' for name in losses)
                raise ValueError(
                    f'task.{key} changes nothing with task.loss = "{self.loss}": leave it out, or use {named}'
                )
        return self


class Reward(TaskSpec):
    """Learn to score the better of two answers higher (Bradley and Terry 1952; Ouyang et al. 2022, section 3.5).

    The model has one score for a text, as `…ForSequenceClassification` of transformers with one label has."""

    type: Literal["reward"]
    centring: LossWeight = 0.0
    """How much the squared sum of a pair's two scores counts in the loss, which keeps scores near 0 (Eisenstein et al.
    2023). trl calls it `center_rewards_coefficient`; 0.01 is usual."""
    new_head: bool = False
    """Whether the last layer of the head starts from random weights although `model.pretrained` has one. Set it if the
    checkpoint has more than one score."""

    implementation: ClassVar[str] = "trainkit.tasks.reward"
    documents: ClassVar[frozenset[str]] = frozenset({"preference", "preference-chat"})
    models: ClassVar[frozenset[Kind]] = frozenset({"encoder", "causal"})
    shifted: ClassVar[bool] = False
    reports: ClassVar[frozenset[str]] = frozenset({"loss", "accuracy", "margin", "chosen_score", "rejected_score"})

    def head(self, data: Data) -> Head:
        """Return a head with one score."""
        return Head("sequence", 1, (), self.new_head)

    def check_sizes(self, model: ModelSpec, data: Data) -> None:
        """Raise ValueError if a decoder would be scored at another token than in transformers."""
        check_last_token(model, data)


class Kto(TaskSpec):
    """Learn from single answers that are good or bad: good ones become likelier, bad ones less likely (KTO, Ethayarajh
    et al. 2024).

    An answer's reward, its log-likelihood less that of the frozen reference, is compared with a baseline: the mean of
    the same difference for answers to other prompts in the batch of the step, or in the whole set of an evaluation, or
    0 where that is negative."""

    type: Literal["kto"]
    beta: PositiveRatio = 0.1
    """How much the reward counts."""
    desirable_weight: PositiveRatio = 1.0
    """How much a good answer counts in the loss."""
    undesirable_weight: PositiveRatio = 1.0
    """How much a bad answer counts in the loss. The paper advises weights with which desirable_weight x good answers is
    between 1 and 4/3 times undesirable_weight x bad answers."""

    implementation: ClassVar[str] = "trainkit.tasks.kto"
    documents: ClassVar[frozenset[str]] = frozenset({"judged", "judged-chat"})
    models: ClassVar[frozenset[Kind]] = frozenset({"causal"})
    learned_share: ClassVar[float] = 0.5  # the other answer is for the baseline only
    reports: ClassVar[frozenset[str]] = frozenset(
        {
            "loss",
            "accuracy",
            "kl",
            "desirable_reward",
            "undesirable_reward",
            "desirable_log_likelihood",
            "undesirable_log_likelihood",
        }
    )

    @property
    def reference(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of the reference's log-likelihoods of the answer and of the other answer."""
        return {"reference": (2,)}


#: Those of this file; `Task` in `task.py` lists the files.
TASKS = (Preference, Kto, Reward)
