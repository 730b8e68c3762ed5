"""Access to a page: a request needs its token, and a `Host` header that names this machine."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

from workbench.host.ports import HOST


@dataclass(frozen=True)
class PageAccess:
    """The port and the token of a page, and the address in the requests for it."""

    port: int
    token: str = field(repr=False)
    address: str = HOST

    @property
    def url(self) -> str:
        """The address, with the token."""
        return f"http://{self.address}:{self.port}/?token={self.token}"

    def is_own(self, host: str) -> bool:
        """Whether a request's `Host` is this page's.

        It refuses DNS rebinding: a page elsewhere, whose name was bound to 127.0.0.1, sends that name.
        """
        return host in {f"{name}:{self.port}" for name in (self.address, HOST, "localhost")}

    def is_token(self, token: str) -> bool:
        """Whether this is the token; takes as long for each that is not."""
        return hmac.compare_digest(token.encode(), self.token.encode())
