"""[sample]: texts that the model writes during training."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainkit.recipe.spec import Count, Fraction, NotNegative, Positive, Spec


class ChatMessage(Spec):
    role: str
    """Who says it, such as `"user"`, `"system"` or `"assistant"`."""
    content: str
    """What is said; the name of a special token is that token, as in training."""


class Sample(Spec):
    """Text from the model as it is now, at these steps and at the end."""

    every: Count | None = None
    """Steps from one sample to the next; only at the end where not given."""
    prompts: Annotated[
        tuple[str | Annotated[tuple[ChatMessage, ...], Field(min_length=1)], ...], Field(min_length=1)
    ] = ("\n",)
    """Each is continued: a text, or a conversation, `[{ role = "user", content = "…" }]`, which the chat template
    writes as in training, up to where the assistant answers. The name of a special token in it is that token."""
    chat: bool = False
    """Whether a prompt that is a text is what the user says in a conversation, as is one typed in the dashboard."""
    max_tokens: Count = 100
    """Tokens to continue with, at most."""
    temperature: NotNegative = 0.8
    """0 always takes the likeliest token."""
    top_k: Count | None = 50
    """Only the likeliest so many are drawn from."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Only the likeliest are drawn from that have so much probability together."""
    min_p: Fraction | None = None
    """Only those are drawn from that are at least this many times as likely as the likeliest."""
    repetition_penalty: Positive = 1.0
    """Above 1, tokens that were there before become less likely."""

    @property
    def has_conversations(self) -> bool:
        """Whether it takes a chat template to write its prompts."""
        return self.chat or not all(isinstance(prompt, str) for prompt in self.prompts)
