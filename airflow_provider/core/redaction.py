"""Takes what looks like a credential out of texts that others wrote: they end in logs, XComs and lineage."""

from __future__ import annotations

import re

MAX_TEXT = 20_000
"""Longer texts lose their middle first: patterns over megabytes would block whoever waits."""
MASK = "***"
_SECRETS = (
    # A signed URL's query, whatever its parameters are called.
    (re.compile(r"(\w://[^\s\"'>?]{0,500})\?[^\s\"'>]*"), rf"\1?{MASK}"),
    (re.compile(r"//[^\s'\"]{0,300}@"), f"//{MASK}@"),
    (re.compile(r"(/[^\s\"'?]{0,300})\?(?=[^\s\"']{0,300}=)[^\s\"'>]*"), rf"\1?{MASK}"),
    (re.compile(r"(?i)\b(basic\s+)[\w+/=]{8,}"), rf"\1{MASK}"),
    (re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]{8,}"), rf"\1{MASK}"),
    (re.compile(r"(?i)\b(authorization['\"]*\s*[:=]\s*['\"]?(?:\w+\s+)?)[^'\"\n]{6,}"), rf"\1{MASK}"),
    (re.compile(r"(?i)\b(x-api-key|api-key)(['\"]*\s*[:=]?\s*['\"]?)[\w.~+/=-]{6,}"), rf"\1\2{MASK}"),
    (re.compile(r"(?i)\b(x-amz-[a-z-]+|signature|awsaccesskeyid)(['\"]?\s*[=:]\s*['\"]?)[^&\s'\"]+"), rf"\1\2{MASK}"),
    (
        re.compile(
            r"(?i)\b([\w-]{0,40}(?:secret|password|passwd|token|api_?key)[\w-]{0,40}['\"]?\s*[=:]\s*['\"]?)[\w+/=.~-]{6,}"
        ),
        rf"\1{MASK}",
    ),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"), MASK),
)
_LONG_BLOB = re.compile(r"[A-Za-z0-9/+=]{60,}")


def redact(text: str) -> str:
    """The text without user information in URLs, signed queries, tokens, passwords and AWS keys."""
    if len(text) > MAX_TEXT:
        text = f"{text[: MAX_TEXT // 2]} ... {text[-MAX_TEXT // 2 :]}"
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def redact_answer(text: str, *, limit: int = 300) -> str:
    """A server's answer: as `redact`, also without long blobs (canonical requests, policies), at most `limit` long."""
    return _LONG_BLOB.sub(MASK, redact(text))[:limit]
