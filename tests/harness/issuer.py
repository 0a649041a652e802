"""An issuer of access tokens: an RSA key, its JWK set, tokens that it has signed, and pages over HTTP."""

import base64
import http.server
import json
import subprocess
import threading
import time


def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Issuer:
    def __init__(self, directory, name="one"):
        self.name = name
        self.key = f"{directory}/issuer-{name}.key"
        subprocess.run(["openssl", "genpkey", "-quiet", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", self.key],
                       check=True, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        modulus = subprocess.run(["openssl", "rsa", "-in", self.key, "-noout", "-modulus"], check=True, capture_output=True,
                                 text=True).stdout
        modulus = bytes.fromhex(modulus.strip().split("=")[1])
        self.jwk = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": name, "n": encoded(modulus), "e": "AQAB"}

    def token(self, issuer, header=None, **claims):
        claims = {"iss": issuer, "aud": "db", "scope": "openid pg", "exp": time.time() + 300, **claims}
        header = {"alg": "RS256", "kid": self.name, **(header or {})}
        message = ".".join(encoded(json.dumps(part).encode()) for part in (header, claims))
        signed = subprocess.run(["openssl", "dgst", "-sha256", "-sign", self.key], input=message.encode(), check=True,
                                capture_output=True).stdout
        return f"{message}.{encoded(signed)}"


class Pages:
    """JSON by path, over HTTP on loopback; `fetched` are the paths that were asked for."""

    def __init__(self):
        pages = self
        self.documents, self.fetched = {}, []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                pages.fetched.append(self.path)
                document = pages.documents.get(self.path)
                self.send_response(404 if document is None else 200)
                body = json.dumps(document or {}).encode()
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
