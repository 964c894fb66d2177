"""A host whose clock is off is told so: by its clock the cluster's certificates are not valid."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from hetero.engines.ray.address import knock
from hetero.engines.ray.certificates import make_certificates, server_context
from hetero.errors import EngineError


def make_expired(folder: Path) -> None:
    """Have an authority, and a certificate of it that expired a day ago."""
    folder.mkdir()
    new = "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    for command in (
        f"{new} -x509 -days 2 -subj /CN=ca -keyout ca.key -out ca.crt",
        f"{new} -subj /CN=node -keyout node.key -out node.csr",
        "x509 -req -in node.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days -1 -out node.crt",
    ):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True, timeout=250)


def knocked(folder: Path, own: Path) -> str:
    """Return what a host with its own certificates says of one that shows those of a folder."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "node.crt", folder / "node.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with suppress(OSError), context.wrap_socket(listener.accept()[0], server_side=True):
                pass

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(EngineError) as told:
            knock(f"127.0.0.1:{listener.getsockname()[1]}", own / "ca.crt")
        thread.join()
    return str(told.value)


def test_a_certificate_that_is_not_valid_by_this_hosts_clock_is_told_of_with_the_clock(tmp_path: Path) -> None:
    make_expired(tmp_path / "expired")
    said = knocked(tmp_path / "expired", tmp_path / "expired")
    assert "certificate has expired, by the clock of this host; set the clocks of all hosts right" in said
    make_certificates(tmp_path / "foreign", ["127.0.0.1"])
    assert server_context(tmp_path / "foreign").verify_mode is ssl.CERT_REQUIRED
    said = knocked(tmp_path / "foreign", tmp_path / "expired")
    assert "use the folder of certificates that the head uses" in said
    assert "\n" not in said
