"""Tokenizers: given, fetched or trained; their special tokens; the sample that one is trained on."""
