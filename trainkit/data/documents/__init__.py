"""From rows to documents: templates, conversations, labelled texts, images."""
