"""Certificates for tests, made with openssl and keytool: a CA, what it signs, and Java's stores."""

import shutil
import ssl
import subprocess
from pathlib import Path

from .process import Failure

PASSWORD = "changeit"
EXTENSIONS = "subjectAltName={names}\nbasicConstraints=CA:false\n"


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return done.stdout


class Authority:
    """A CA of its own, with all it signs in one folder."""

    def __init__(self, folder, name):
        self.folder, self.name = Path(folder), name
        self.pem, self.key = self._paths(name)
        run(
            *("openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-days", "30"),
            *("-subj", f"/CN={name}", "-keyout", self.key, "-out", self.pem),
        )

    def _paths(self, name):
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"

    def sign(self, name, *names):
        """A certificate with these subject alternative names; its file and its key's."""
        pem, key = self._paths(name)
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        extensions.write_text(EXTENSIONS.format(names=",".join(names)))
        run(
            *("openssl", "req", "-nodes", "-newkey", "rsa:2048", "-subj", f"/CN={name}"),
            *("-keyout", key, "-out", request),
        )
        run(
            *("openssl", "x509", "-req", "-in", request, "-CA", self.pem, "-CAkey", self.key),
            *("-CAcreateserial", "-days", "30", "-extfile", extensions, "-out", pem),
        )
        key.chmod(0o600)
        return pem, key

    def keystore(self, pem, key):
        """The pair as Java keeps it."""
        store = pem.with_suffix(".p12")
        run(
            *("openssl", "pkcs12", "-export", "-in", pem, "-inkey", key, "-name", "node"),
            *("-passout", f"pass:{PASSWORD}", "-out", store),
        )
        return store

    def truststore(self):
        """The CA as Java keeps it."""
        store = self.folder / f"{self.name}-trust.p12"
        run(
            *("keytool", "-importcert", "-noprompt", "-alias", "ca", "-file", self.pem),
            *("-keystore", store, "-storetype", "PKCS12", "-storepass", PASSWORD),
        )
        return store

    def context(self, identity=None):
        """What a Python client needs to trust this CA, and perhaps to show a certificate."""
        context = ssl.create_default_context(cafile=self.pem)
        # The driver names no host.
        context.check_hostname = False
        if identity:
            context.load_cert_chain(*identity)
        return context


def client_encryption(store, trust):
    """`client_encryption_options` of a Cassandra that asks clients for certificates of `trust`."""
    return {
        "enabled": True,
        "optional": False,
        "keystore": str(store),
        "keystore_password": PASSWORD,
        "require_client_auth": True,
        "truststore": str(trust),
        "truststore_password": PASSWORD,
        "store_type": "PKCS12",
    }


def replace(target, source):
    """Puts other certificates in a place, with the mode that they have."""
    for to, by in zip(target, source, strict=True):
        shutil.copy(by, to)
