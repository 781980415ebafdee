"""Where a Ray dashboard lives: one parsed form for every way a connection can spell it. Pure."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from airflow_provider.core.errors import InvalidConfig

DEFAULT_PORT = 8265
"""Port of Ray's dashboard, added only to a bare host without scheme's port and path prefix."""

EXPECTED_FORM = "http(s)://host[:port][/prefix], for example http://10.0.0.5:8265 or https://gw.example/ray/team-a"

_OTHER_SCHEMES = frozenset({"ray", "ws", "wss", "grpc", "tcp", "ftp", "file", "s3", "unix"})
_SECURE = {"http": False, "https": True}
_HOST_NAME = re.compile(r"^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?$")
_NUMBERS = re.compile(r"^[0-9.]+$")
"""Some resolvers read `127.1` as 127.0.0.1 and others don't: what has no letter is a whole address or nothing."""
_PREFIX = re.compile(r"^(/[A-Za-z0-9._~%!$&'()*+,;=:@-]+)*$")


@dataclass(frozen=True)
class ClusterAddress:
    """One dashboard address. `str()` gives a URL that parses back to the same value.

    Environment variables (`RAY_ADDRESS`, `RAY_API_SERVER_ADDRESS`, proxies) never change it: Ray's own client lets them
    win over the address it is given, which sent jobs to another cluster (ray issues 36064, 41590, 50287).
    """

    host: str
    """Host name or IP literal, without brackets."""
    port: int | None = None
    """None = the scheme's own port (80 or 443), as behind a gateway."""
    is_secure: bool = False
    """Whether https and wss are used."""
    prefix: str = ""
    """Path before `/api/...`: empty, or with a leading and without a trailing slash."""

    @classmethod
    def parse(
        cls, host: str | None, *, schema: str | None = None, port: int | None = None, path: str | None = None
    ) -> ClusterAddress:
        """Parse the parts of an Airflow connection; `host` may also be a whole URL.

        A scheme inside `host` wins over `schema`, a port inside it over `port`. Port 8265 is added only when there is no
        port, no path prefix, and no scheme that was asked for: `gw.example` with https means port 443.

        Raises:
            InvalidConfig: no host, another scheme than http(s), user info, a query, a fragment, or a bad port.

        """
        text = (host or "").strip()
        if not text:
            raise _refuse("the connection has no host")
        scheme, rest, has_scheme = _split_scheme(text, schema)
        if any(mark in rest for mark in "?#"):
            raise _refuse("the address has a query or a fragment")
        authority, _, inline_path = rest.partition("/")
        if "@" in authority:
            raise _refuse("the address holds user information; put a token into the connection's password")
        name, inline_port = _split_port(authority)
        prefix = _prefix(inline_path or (path or ""))
        number = inline_port if inline_port is not None else port
        if number is not None and not 0 < number < 65536:
            raise _refuse(f"port {number} is not between 1 and 65535")
        if number is None and not prefix and not has_scheme:
            number = DEFAULT_PORT
        return cls(host=name, port=number, is_secure=_SECURE[scheme], prefix=prefix)

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine by its name or address: nothing that is sent there leaves it."""
        name = self.host.lower().rstrip(".")
        if name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(name.partition("%")[0]).is_loopback
        except ValueError:
            return False

    @property
    def authority(self) -> str:
        """Host and port as they stand in a URL, an IPv6 literal in brackets once."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    def http(self, path: str) -> str:
        """URL of an API path that starts with a slash."""
        return f"{'https' if self.is_secure else 'http'}://{self.authority}{self.prefix}{path}"

    def ws(self, path: str) -> str:
        """Websocket URL of an API path that starts with a slash."""
        return f"{'wss' if self.is_secure else 'ws'}://{self.authority}{self.prefix}{path}"

    def __str__(self) -> str:
        """Give the base URL without a trailing slash."""
        return self.http("")


def _split_scheme(text: str, schema: str | None) -> tuple[str, str, bool]:
    wanted = (schema or "").strip().lower()
    if "://" in text:
        scheme, _, rest = text.partition("://")
        scheme, has_scheme = scheme.lower(), True
    else:
        scheme, rest, has_scheme = wanted or "http", text, bool(wanted)
    if scheme not in _SECURE:
        # Any other word may be a password in the wrong field.
        shown = f"scheme {scheme!r}" if scheme in _OTHER_SCHEMES else "the scheme"
        raise _refuse(f"{shown} is not http or https (the Jobs API is on the dashboard, not on ray://)")
    return scheme, rest, has_scheme


def _split_port(authority: str) -> tuple[str, int | None]:
    if _is_ipv6(authority):
        return authority, None
    try:
        parts = urlsplit(f"//{authority}")
        name, port = parts.hostname, parts.port
    except ValueError:
        raise _refuse("host or port can't be read") from None
    if not name or authority.endswith(":"):
        raise _refuse("host or port can't be read")
    if _is_ipv6(name):
        return name, port
    if not _HOST_NAME.match(name):
        raise _refuse("the host holds characters that no host name has")
    if any(not 0 < len(label) < 64 for label in name.removesuffix(".").split(".")):
        raise _refuse("a part of the host's name is empty or longer than 63 characters")
    if _NUMBERS.match(name) and not _is_ipv4(name):
        raise _refuse("the host is neither a name nor a whole IPv4 address, which has four numbers up to 255")
    return name, port


def _is_ipv4(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 4
    except ValueError:
        return False


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def _prefix(path: str) -> str:
    stripped = path.strip().strip("/")
    prefix = f"/{stripped}" if stripped else ""
    if not _PREFIX.match(prefix) or any(part in {".", ".."} for part in prefix.split("/")):
        raise _refuse("the path prefix is not a plain URL path")
    return prefix


def _refuse(what: str) -> InvalidConfig:
    # The text of the address is not repeated: it may hold a password in its user information.
    return InvalidConfig(f"Ray dashboard address refused: {what}", change=f"use {EXPECTED_FORM}")
