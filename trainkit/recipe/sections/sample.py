"""[sample]: texts that the model writes during training."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainkit.recipe.spec import Count, Fraction, NotNegative, Positive, Spec


class ChatMessage(Spec):
    role: str
    """Who speaks: `"user"`, `"system"`, `"assistant"` or another role that the chat template knows."""
    content: str
    """The text. The name of a special token in it becomes that token, as in training."""


class Sample(Spec):
    """Texts that the current model writes during training."""

    every: Count | None = None
    """Steps between samples; there are always some at the end. If absent, there are no others."""
    prompts: Annotated[
        tuple[str | Annotated[tuple[ChatMessage, ...], Field(min_length=1)], ...], Field(min_length=1)
    ] = ("\n",)
    """Prompts to continue. Each is a text, or a conversation `[{ role = "user", content = "…" }]`, which the chat
    template writes as in training, up to the assistant's answer. The name of a special token becomes that token."""
    chat: bool = False
    """Whether texts, also those typed in the dashboard, are what the user says in a conversation."""
    max_tokens: Count = 100
    """Largest number of tokens to write after a prompt."""
    temperature: NotNegative = 0.8
    """What the logits are divided by. Higher is more varied; 0 always takes the likeliest token."""
    top_k: Count | None = 50
    """Draw only from this many of the likeliest tokens."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Draw only from the likeliest tokens whose probabilities together reach this share. If absent, from all."""
    min_p: Fraction | None = None
    """Draw only from tokens at least this many times as likely as the likeliest. If absent, from all."""
    repetition_penalty: Positive = 1.0
    """Above 1, tokens that already occur in the text become less likely; 1 changes nothing."""

    @property
    def has_conversations(self) -> bool:
        """Whether a chat template is needed to write its prompts."""
        return self.chat or not all(isinstance(prompt, str) for prompt in self.prompts)
