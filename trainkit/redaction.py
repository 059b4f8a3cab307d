"""The secrets in a text, replaced: passwords and tokens in URLs, and the values of keys that are named like secrets.

`redact` is used by everything that prints and by everything that writes a file which others may read. A run's own
recipe keeps its secrets apart, in a file that only its owner can read (`rundir/directory.py`).
"""

from __future__ import annotations

import re

#: What stands in place of a secret.
MASK = "***"

# Patterns are compiled when the first text needs them: not for `trainkit --help`.

#: What ends a URL within a text, and a value within its query.
_END = r"""\s"'<>\\"""
#: The user's name and password of a URL. The scheme before it is looked up afterwards: a pattern that begins with a
#: word takes time that grows with the square of a text's length.
_IN_URL = rf"://([^/?#{_END}]+)@"
_NAMES = (
    r"api[_-]?keys?|access[_-]?key(?:[_-]?id)?|account[_-]?key|secret[_-]?(?:access[_-]?)?key|private[_-]?key"
    r"|secrets?|token|passw(?:or)?d|passphrase|pwd|credentials?|authorization"
)
_IN_QUERY = rf"(?i)((?:{_NAMES}|key|sig|signature|auth)=)([^&;#{_END}]+)"
#: A value after a key, as TOML, JSON, Python or a shell writes it; `\"` are the quotes of a text within a text.
_VALUE = (
    r'(?P<text>"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|\\"(?:[^"\\]|\\[^"])*\\"'
    # possessive, and without "[": also where no list ends, this takes time that grows with the length alone
    r'|\[(?:[^\[\]"\'\\]++|\\"(?:[^"\\]|\\[^"])*+\\"|"(?:[^"\\]|\\.)*+"|\'[^\'\\]*+\'){0,512}+\])'
    r"|(?P<number>-?\d[\w.+-]*)"
)
_WORD = r"[^\s\"'\[\]{}\\,;&#=*]+"
_ASSIGNED = (
    rf"(?i)(?P<name>{_NAMES})(?:(?P<sign>\\?[\"']?\s{{0,4}}[=:]\s{{0,4}})(?:{_VALUE})"
    rf"|(?P<is>\s{{0,4}}=\s{{0,4}}){_WORD})"
)
_BEARER = r"(\bBearer\s+)[\w.~+/-]{8,}=*"
#: Lower-case texts with none of these have no secret, which is quick to see.
_HINTS = ("://", "=", "bearer", "key", "secret", "token", "pass", "pwd", "credential", "authorization")
#: Keys of tokenizers that end as the names of secrets do.
_NOT_SECRET = (
    r"(?i)(?:^|[^a-z])(?:bos|eos|eot|pad|unk|mask|cls|sep|bot|end|start|begin|image|audio|video|additional|special|added"
    r"|first|last|next|per|a|the|of|text|turn|message|document|word)[_ -]$"
)


def redact(text: str, *, keys: bool = True) -> str:
    """Return a text with `***` in place of every secret that its form gives away; JSON and TOML stay well-formed.

    Secrets are the user's name and password in a URL, values in a URL's query such as `?token=`, and what is assigned
    to a key such as `api_key`, `password` or `hf_token`.

    Args:
        keys: whether what is assigned to keys counts. It does not in what a model writes, which may be a program.
    """
    lower = text.lower()
    if not any(hint in lower for hint in _HINTS):
        return text
    text = re.sub(_IN_URL, _without_user, text)
    text = re.sub(_IN_QUERY, _without_value, text)
    text = re.sub(_BEARER, rf"\1{MASK}", text)
    return re.sub(_ASSIGNED, _without_assigned, text) if keys else text


def _without_user(match: re.Match[str]) -> str:
    scheme = re.search(r"[A-Za-z0-9+.-]*$", match.string[max(0, match.start() - 16) : match.start()])
    # a name alone may be a container (abfs), a user (ssh) or, in a web address, a token
    if ":" not in match[1] and (scheme is None or not scheme[0].lower().startswith("http")):
        return match[0]
    return f"://{MASK}@"


def _without_value(match: re.Match[str]) -> str:
    before = match.string[max(0, match.start() - 64) : match.start()]
    return f"{match[1]}{MASK}" if re.search(r"[?&;](?:[\w.-]*[_.-])?$", before) else match[0]


def _without_assigned(match: re.Match[str]) -> str:
    name, sign, text = match["name"], match["sign"], match["text"]
    before = match.string[max(0, match.start() - 40) : match.start()]
    if name.lower() == "token" and re.search(_NOT_SECRET, before):
        return match[0]
    if sign is None:
        return f"{name}{match['is']}{MASK}"
    if text is None:
        # a line of a file, or a metric that is named "…_token"; JSON quotes its keys
        other = ":" in sign and ('"' not in sign or name.lower().startswith(("token", "secret")))
        return match[0] if other else f'{name}{sign}"{MASK}"'
    if text.startswith("["):
        quote = re.search(r"\\?[\"']", text)
        return f"{name}{sign}[{quote[0]}{MASK}{quote[0]}]" if quote else match[0]
    quote_length = 2 if text.startswith("\\") else 1
    opened = text[:quote_length]
    return match[0] if len(text) == 2 * quote_length else f"{name}{sign}{opened}{MASK}{opened}"
