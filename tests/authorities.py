"""Certificate authorities for tests of TLS, made by openssl."""

import subprocess

import programs


def two_authorities(folder):
    """Make two authorities; of each, the certificates of a server and of a worker.

    The key of `locked`, the worker's too, has a password.
    """
    openssl = programs.need("openssl")

    def run(*words):
        subprocess.run([openssl, *map(str, words)], check=True, capture_output=True)

    def made(name):
        ca, ca_key = folder / f"{name}.pem", folder / f"{name}.key"
        new = ["-nodes", "-newkey", "rsa:2048", "-keyout"]
        run("req", "-x509", *new, ca_key, "-out", ca, "-days", "2", "-subj", f"/CN={name}")
        found = {"ca": ca}
        for who in ("server", "worker"):
            key, asked, given = (folder / f"{name}-{who}.{end}" for end in ("key", "csr", "crt"))
            extra = folder / "names"
            extra.write_text("subjectAltName=DNS:localhost")
            run("req", *new, key, "-out", asked, "-subj", "/CN=localhost")
            run(
                *("x509", "-req", "-in", asked, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial"),
                *("-out", given, "-days", "2", "-extfile", extra),
            )
            both = folder / f"{name}-{who}.both"
            both.write_text(key.read_text() + given.read_text())
            found[who] = both
        locked = folder / f"{name}-locked.both"
        password = ["-v2", "aes256", "-passout", "pass:secret"]
        run("pkcs8", "-topk8", *password, "-in", key, "-out", locked)
        locked.write_text(locked.read_text() + given.read_text())
        found["locked"] = locked
        return found

    return made("first"), made("second")
