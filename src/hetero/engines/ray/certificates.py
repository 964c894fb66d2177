"""Certificates for the hosts of one cluster: an authority of its own, and one certificate that all hosts share.

In: the addresses of the hosts, a folder. Out: ca.crt, node.crt and node.key in it. It must not send anything anywhere.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path

from hetero.floor.errors import BadValueError, EngineError
from hetero.floor.files import local_path
from hetero.floor.private import check_secret

__all__ = ["check_folder", "client_context", "make_certificates", "server_context", "tls_variables", "why_refused"]

_FILES = {"RAY_TLS_CA_CERT": "ca.crt", "RAY_TLS_SERVER_CERT": "node.crt", "RAY_TLS_SERVER_KEY": "node.key"}
_DAYS = "825"
_OPENSSL_S = 60.0
_UNTIMELY = (9, 10)
"""OpenSSL's numbers for a certificate that is not yet valid, or has expired."""


def make_certificates(folder: Path, hosts: Sequence[str]) -> tuple[Path, ...]:
    """Make an authority and a certificate for these hosts; the authority's key is not kept.

    Parameters
    ----------
    folder
        New or empty; copy what it then holds to every host.
    hosts
        IP addresses or names under which the hosts reach each other.

    Raises
    ------
    BadValueError
        There is no host, or the folder already has certificates.
    EngineError
        OpenSSL is not installed, or fails.
    """
    if not hosts:
        raise BadValueError("certificates without a host", remedy="name each host, as in --host 10.0.0.1")
    folder = local_path(folder, "folder")
    if any(os.path.lexists(folder / name) for name in _FILES.values()):
        raise BadValueError(f"{folder} already has certificates", remedy="name a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadValueError(f"{folder} cannot be made: {why}", remedy="name a new folder") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadValueError(f"nothing can be written in {folder}", remedy="name a new folder")
    names = ",".join([_subject(host) for host in (*dict.fromkeys(hosts), "127.0.0.1", "localhost")])
    key, request, extension = folder / "ca.key", folder / "node.csr", folder / "names.cnf"
    extension.write_text(f"subjectAltName={names}\n", encoding="utf-8")
    ca, crt, own = (folder / name for name in _FILES.values())
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    _openssl("req", "-x509", *new_key, "-days", _DAYS, "-subj", "/CN=hetero cluster", "-keyout", key, "-out", ca)
    _openssl("req", *new_key, "-subj", "/CN=hetero node", "-keyout", own, "-out", request)
    signing = ("-CA", ca, "-CAkey", key, "-CAcreateserial", "-days", _DAYS, "-extfile", extension)
    _openssl("x509", "-req", "-in", request, *signing, "-out", crt)
    for needless in (key, request, extension, folder / "ca.srl"):
        needless.unlink(missing_ok=True)
    own.chmod(0o600)
    return ca, crt, own


def _subject(host: str) -> str:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return f"DNS:{host}"
    return f"IP:{host}"


def _openssl(*arguments: str | Path) -> None:
    try:
        subprocess.run(
            ["openssl", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=_OPENSSL_S,
            check=True,
            umask=0o077 if os.name == "posix" else -1,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        raise EngineError(
            f"certificates cannot be made: {said[-1]}", remedy="install OpenSSL's command line"
        ) from error


def check_folder(folder: Path) -> None:
    """Refuse a folder that lacks one of the files, or whose key everybody may read.

    Raises
    ------
    BadValueError
        It does.
    """
    absent = [name for name in _FILES.values() if not (folder / name).is_file()]
    if absent:
        raise BadValueError(
            f"{folder} lacks {', '.join(absent)}",
            remedy="make them with 'hetero cluster certificates', and copy them to each host",
        )
    check_secret(folder / _FILES["RAY_TLS_SERVER_KEY"])


def tls_variables(folder: Path) -> dict[str, str]:
    """Return the variables by which Ray encrypts what goes between hosts."""
    return {"RAY_USE_TLS": "1"} | {name: str(folder.absolute() / file) for name, file in _FILES.items()}


def why_refused(error: ssl.SSLError) -> tuple[str, str]:
    """Return what is wrong with the certificates of two ends, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _UNTIMELY:
        return (
            f"{error.verify_message}, by the clock of this host",
            "set the clocks of all hosts right, as by NTP, or make new ones with 'hetero cluster certificates'",
        )
    return str(error.reason), "use the folder of certificates that the head uses"


def client_context(folder: Path) -> ssl.SSLContext:
    """Return what encrypts a connection to a host of the cluster: it must have its authority's certificate.

    Notes
    -----
    All hosts share one certificate, so that the name under which a host is reached says nothing.
    """
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.check_hostname = False
    context.load_cert_chain(folder / "node.crt", folder / "node.key")
    return context


def server_context(folder: Path) -> ssl.SSLContext:
    """Return what encrypts connections from elsewhere: who connects must show its authority's certificate too."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.crt"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / "node.crt", folder / "node.key")
    return context
