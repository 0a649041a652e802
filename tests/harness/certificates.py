"""Throw-away certificates by the openssl program: a CA, a server, clients, and a stranger whom the CA has not signed."""

import pathlib
import subprocess

HOST = "localhost"
DAYS = "2"


def _openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Certificates:
    """Files in `directory`: ca.crt, server.crt, client.crt (CN=app_cert), wrong.crt (CN=somebody), stranger.crt; keys beside them."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(mode=0o755)
        self._authority("ca")
        self._authority("other-ca")
        self.issue("server", HOST, f"subjectAltName=DNS:{HOST},IP:127.0.0.1,IP:::1")
        self.issue("client", "app_cert")
        self.issue("wrong", "somebody")
        self.issue("stranger", "app_cert", authority="other-ca")

    def path(self, name):
        return str(self.directory / name)

    def _authority(self, name):
        # ECDSA P-256: RSA keys take a second each to make.
        _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", DAYS,
                 "-subj", f"/CN=test {name}", "-keyout", self.path(f"{name}.key"), "-out", self.path(f"{name}.crt"),
                 "-addext", "keyUsage=critical,keyCertSign,cRLSign")

    def issue(self, name, subject, extension="extendedKeyUsage=clientAuth,serverAuth", authority="ca", curve="prime256v1"):
        """A certificate of version 3, replacing one of the same name. Without `extension`: of
        version 1, as PostgreSQL's manual has it (19.9.5); newer OpenSSL programs make one of version 3 of that, too."""
        _openssl("req", "-newkey", "ec", "-pkeyopt", f"ec_paramgen_curve:{curve}", "-nodes", "-subj", f"/CN={subject}",
                 "-keyout", self.path(f"{name}.key"), "-out", self.path(f"{name}.csr"))
        (self.directory / f"{name}.key").chmod(0o600)
        if not extension:
            _openssl("x509", "-req", "-in", self.path(f"{name}.csr"), "-CA", self.path(f"{authority}.crt"),
                     "-CAkey", self.path(f"{authority}.key"), "-CAcreateserial", "-days", DAYS, "-out", self.path(f"{name}.crt"))
            return
        config = self.directory / f"{name}.ext"
        config.write_text(extension + "\n")
        _openssl("x509", "-req", "-in", self.path(f"{name}.csr"), "-CA", self.path(f"{authority}.crt"),
                 "-CAkey", self.path(f"{authority}.key"), "-CAcreateserial", "-days", DAYS,
                 "-extfile", str(config), "-out", self.path(f"{name}.crt"))

    def version(self, name):
        """Of a certificate: 1 or 3."""
        text = subprocess.run(["openssl", "x509", "-in", self.path(f"{name}.crt"), "-noout", "-text"], check=True, capture_output=True,
                              text=True)
        return int(text.stdout.split("Version:")[1].split()[0])
