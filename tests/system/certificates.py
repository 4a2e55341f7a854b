"""Certificates for tests, made by the openssl command."""

import subprocess


class Authority:
    """A certificate authority with its files in a folder."""

    def __init__(self, folder, name):
        self.folder = folder
        self.name = name
        self.certificate = folder / f"{name}.crt"
        self.key = folder / f"{name}.key"
        self.openssl("req", "-x509", *self.new_key(self.key), "-out", self.certificate, "-days", "2", "-subj", f"/CN={name}")

    def sign(self, name, days=2, role=None):
        """Makes a certificate, for a role if one is given; returns the flags that the programs take."""
        request, key, certificate = (self.folder / f"{name}.{end}" for end in ("csr", "key", "crt"))
        self.openssl("req", *self.new_key(key), "-out", request, "-subj", f"/CN={name}" + (f"/OU=hicache:{role}" if role else ""))
        self.openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial", "-days", str(days),
                     "-out", certificate)
        return ["--tls-cert", certificate, "--tls-key", key, "--tls-ca", self.certificate]

    def new_key(self, path):
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", path]

    def openssl(self, *arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
