"""The token cache: units of work become shards, ledgers list the shards, and streams read them."""
