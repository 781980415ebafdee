"""How we identify ourselves to a dashboard and how we check its identity, for HTTP and websocket alike."""

from __future__ import annotations

import re
import ssl
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from airflow_provider.core.errors import InvalidConfig

_HEADER_NAME = re.compile(r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
_PLAIN_NAME = re.compile(r"^[A-Z][a-z]{0,20}(-[A-Z][a-z]{0,20}){1,5}$")
_CERTIFICATE_FILE = re.compile(r"^/[\w./ -]{1,300}\.(?:pem|crt|cer|cert|ca-bundle)$")
_RESERVED = frozenset({"host", "content-length", "transfer-encoding", "connection", "upgrade"})
_MASK = "***"


class InsecureDashboardWarning(UserWarning):
    """The dashboard's certificate isn't checked because `verify` is false."""


@dataclass(frozen=True)
class ClusterCredentials:
    """Token, extra headers and TLS checking. No secret appears in `repr`, `str` or an error."""

    token: SecretStr | str | None = field(default=None, repr=False)
    """Ray's bearer token, without the word Bearer; kept as a SecretStr."""
    header_name: str = field(default="Authorization", repr=False)
    """`X-Ray-Authorization` where a gateway uses or strips `Authorization` (Ray reads it only if the other is absent)."""
    extra_headers: dict[str, SecretStr | str] = field(default_factory=dict, repr=False)
    """Further headers, for example for a gateway; their values count as secret."""
    verify: bool | str = True
    """True: system and certifi authorities; a path: this CA file; False: no check (warns)."""

    def __post_init__(self) -> None:
        """Check everything that can be wrong without a connection."""
        token = _secret(self.token) if self.token else None
        object.__setattr__(self, "token", token)
        extra = {name: _secret(value) for name, value in self.extra_headers.items()}
        object.__setattr__(self, "extra_headers", extra)
        for name in (self.header_name, *extra):
            if not _HEADER_NAME.match(name) or name.lower() in _RESERVED:
                where = "header_name" if name == self.header_name else "the name of a further header"
                raise InvalidConfig(
                    f"{where} can't be used as a header name",
                    change="correct the connection's header_name and headers",
                )
        if token is not None and self.header_name.lower() in {name.lower() for name in extra}:
            raise InvalidConfig(
                f"header {self.shown_header} is given twice, by the token and by the extra headers",
                change="set header_name to X-Ray-Authorization or drop one of the two",
            )
        for name, secret in self.headers().items():
            if not secret.isascii() or not secret.isprintable():
                raise InvalidConfig(
                    f"the value for header {_shown(name)} holds characters a header can't carry",
                    change="check the token for a line break or non-ASCII characters",
                )
        if isinstance(self.verify, str) and not _is_file(self.verify):
            raise InvalidConfig(
                f"{self._shown_file} does not exist on this machine", change="correct the connection's ca_file"
            )

    @property
    def shown_header(self) -> str:
        """The token's header as a message may name it: a token pasted into the wrong field is not repeated."""
        return _shown(self.header_name)

    @property
    def _shown_file(self) -> str:
        is_plain = isinstance(self.verify, str) and _CERTIFICATE_FILE.match(self.verify)
        return f"CA file {self.verify}" if is_plain else "the file that ca_file names"

    def headers(self) -> dict[str, str]:
        """All headers in clear, for the wire only."""
        headers = {name: _reveal(value) for name, value in self.extra_headers.items()}
        if self.token is not None:
            token = _reveal(self.token)
            headers[self.header_name] = token if token.lower().startswith("bearer ") else f"Bearer {token}"
        return headers

    def redact(self, text: str) -> str:
        """Replace every secret in `text`, for example in a server's answer that repeats our headers."""
        for value in self.headers().values():
            for secret in (value, value.removeprefix("Bearer ")):
                if secret:
                    text = text.replace(secret, _MASK)
        return text

    def ssl_context(self) -> ssl.SSLContext:
        """Build a TLS context from `verify` and the system's authorities.

        Raises:
            InvalidConfig: the CA file holds no certificate.

        """
        if self.verify is False:
            warnings.warn(
                "verify is false: the Ray dashboard's certificate isn't checked and its token can be stolen",
                InsecureDashboardWarning,
                stacklevel=2,
            )
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            return context
        if self.verify is True:
            return ssl.create_default_context()
        try:
            return ssl.create_default_context(cafile=self.verify)
        except (ssl.SSLError, OSError) as error:
            raise InvalidConfig(
                f"{self._shown_file} can't be read as certificates",
                known=error.strerror or type(error).__name__,
                change="correct the connection's ca_file",
            ) from None


def _shown(name: str) -> str:
    return (
        name if _PLAIN_NAME.match(name) or name.lower() == "authorization" else "of the connection (name not repeated)"
    )


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # too long, or with a NUL
        return False


def _secret(value: SecretStr | str) -> SecretStr:
    return SecretStr(value.strip()) if isinstance(value, str) else value


def _reveal(value: SecretStr | str) -> str:
    return value if isinstance(value, str) else value.get_secret_value()
