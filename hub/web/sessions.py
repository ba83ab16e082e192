"""The dashboard's sign-in: a bearer token, given once, kept in a cookie that only this hub can read.

The cookie is encrypted and signed with a key that is made at the hub's start (Fernet: AES-CBC and HMAC-SHA256), so it is
worth nothing elsewhere or later. HttpOnly, SameSite=Strict; pages only read, so there is nothing to forge.
"""

import base64

from aiohttp import web
from cryptography.fernet import Fernet, InvalidToken

from hub.web.context import context_of

COOKIE = "hub_session"
LIFE_S = 8 * 3600


def make_key(secret: bytes) -> bytes:
    """A key from 32 random bytes."""
    return base64.urlsafe_b64encode(secret)


def token_in(request: web.Request) -> str:
    """The bearer token in the session cookie; "" without a valid one."""
    sealed = request.cookies.get(COOKIE, "")
    if not sealed:
        return ""
    try:
        return Fernet(context_of(request).session_key).decrypt(sealed.encode(), ttl=LIFE_S).decode()
    except InvalidToken:
        return ""


def remember(request: web.Request, response: web.StreamResponse, token: str) -> None:
    sealed = Fernet(context_of(request).session_key).encrypt(token.encode()).decode()
    response.set_cookie(
        COOKIE, sealed, max_age=LIFE_S, httponly=True, samesite="Strict", secure=request.secure, path="/"
    )


def forget(response: web.StreamResponse) -> None:
    response.del_cookie(COOKIE, path="/")
