"""An authenticator with a shared secret, as a later method will be: to test its place.

Checksums are no part of what is proven: they are computed last, over the proofs, too.
"""

from __future__ import annotations

import hashlib
import hmac

from aiops_protocol.greeting import (
    CRC_BYTES,
    Greeting,
    Hello,
    Method,
    Welcome,
    encode_greeting,
    encode_hello,
    encode_welcome,
)


class HmacAuthenticator:
    """Both sides prove that they know the secret, over the handshake."""

    method = Method.TOKEN

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def client_proof(self, greeting: Greeting, hello: Hello) -> bytes:
        return self._proof(b"client", encode_greeting(greeting), encode_hello(hello))

    def server_proof(self, greeting: Greeting, hello: Hello, welcome: Welcome) -> bytes:
        return self._proof(
            b"server", encode_greeting(greeting), encode_hello(hello), encode_welcome(welcome)
        )

    def _proof(self, side: bytes, *messages: bytes) -> bytes:
        proven = b"".join(message[:-CRC_BYTES] for message in messages)
        return hmac.new(self._secret, side + proven, hashlib.sha256).digest()
