"""The client's side of SCRAM-SHA-256 and SCRAM-SHA-256-PLUS (RFC 5802, RFC 7677), by hand.

# Model  nonce, channel binding and each message are attributes, so that a test can spoil any one of them
"""

import base64
import functools
import hashlib
import hmac
import os

PLAIN = "SCRAM-SHA-256"
PLUS = "SCRAM-SHA-256-PLUS"


@functools.lru_cache(maxsize=256)
def salted_password(secret, salt, iterations):
    return hashlib.pbkdf2_hmac("sha256", secret.encode(), salt, iterations)


def _hmac(key, data):
    return hmac.new(key, data, hashlib.sha256).digest()


def attributes(message):
    """{"r": nonce, "s": salt ...} of a SCRAM message."""
    return dict(part.split("=", 1) for part in message.decode().split(","))


class Exchange:
    """One login. `certificate` (DER) turns on tls-server-end-point channel binding."""

    def __init__(self, secret, certificate=None):
        self.secret = secret
        self.binding = hashlib.sha256(certificate).digest() if certificate else b""
        self.header = b"p=tls-server-end-point,," if certificate else b"n,,"
        self.mechanism = PLUS if certificate else PLAIN
        self.nonce = base64.b64encode(os.urandom(18)).decode()
        self.first_bare = f"n=,r={self.nonce}".encode()

    def first(self):
        return self.header + self.first_bare

    def final(self, server_first):
        given = attributes(server_first)
        assert given["r"].startswith(self.nonce) and len(given["r"]) > len(self.nonce), "server nonce does not extend ours"
        salted = salted_password(self.secret, base64.b64decode(given["s"]), int(given["i"]))
        client_key = _hmac(salted, b"Client Key")
        without_proof = b"c=" + base64.b64encode(self.header + self.binding) + b",r=" + given["r"].encode()
        signed = b",".join([self.first_bare, server_first, without_proof])
        signature = _hmac(hashlib.sha256(client_key).digest(), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature))
        self.server_signature = _hmac(_hmac(salted, b"Server Key"), signed)
        return without_proof + b",p=" + base64.b64encode(proof)

    def verify(self, server_final):
        got = base64.b64decode(attributes(server_final)["v"])
        assert hmac.compare_digest(got, self.server_signature), "server's signature is wrong"
