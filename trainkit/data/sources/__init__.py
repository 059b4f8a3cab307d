"""Sources: which files they have, how these are read, their digests, and which documents are held out."""
