"""A small Ceph on loopback, in a folder of its own: a monitor, one OSD, and the gateway that speaks S3.

In: an empty folder. Out: the options by which a client finds the gateway, and processes that can be killed and started
again. It must not know systemd, and nothing of it outlives the block. There is no manager: nothing here needs one.
"""

from __future__ import annotations

import socket
import subprocess
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hetero.floor.clock import monotonic_s, sleep

__all__ = ["Ceph", "ceph_cluster"]

_PATIENCE_S = 120.0
_USER = ("hetero-tests", "key-of-tests", "secret-of-tests")

_CONFIGURATION = """
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{mon},v1:127.0.0.1:{old_mon}]
mon initial members = a
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
ms mon cluster mode = crc
ms mon service mode = crc
ms mon client mode = crc
run dir = {folder}
admin socket = {folder}/$name.asok
pid file = {folder}/$name.pid
log file = {folder}/$name.log
log to stderr = false
err to stderr = false
crash dir = {folder}/crash
mon data = {folder}/mon
mon data avail crit = 0
mon data avail warn = 0
mon allow pool size one = true
mon allow pool delete = true
mon max pg per osd = 1000
osd data = {folder}/osd
osd objectstore = bluestore
osd memory target = 939524096
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
bluestore block size = 4294967296
bluestore block db size = 0
bluestore block wal size = 0
rgw data = {folder}/rgw
rgw frontends = beast endpoint=127.0.0.1:{gateway}
rgw run sync thread = false
rgw enable usage log = false
rgw dynamic resharding = false
rgw override bucket index max shards = 1
rgw thread pool size = 32
rgw num rados handles = 1
rgw gc max objs = 1
rgw lc max objs = 1
rgw objexp hints num shards = 1
rgw data log num shards = 1
rgw md log max shards = 1
"""


class Ceph:
    """The processes of a cluster; made by `ceph_cluster`.

    Attributes
    ----------
    options : by which a client finds the gateway
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, _free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        _, access_key, secret_key = _USER
        self.options = {
            "endpoint": f"http://127.0.0.1:{self._port}", "region": "us-east-1", "access_key_id": access_key,
            "secret_access_key": secret_key, "virtual_hosted_style_request": "false",
        }  # fmt: skip

    def bring_up(self) -> None:
        """Make the cluster and start it."""
        for name in ("mon", "osd", "rgw", "crash"):
            (self._folder / name).mkdir()
        fsid, mon, old_mon = str(uuid.uuid4()), _free_port(), _free_port()
        text = _CONFIGURATION.format(fsid=fsid, mon=mon, old_mon=old_mon, folder=self._folder, gateway=self._port)
        (self._folder / "ceph.conf").write_text(text)
        addresses = f"[v2:127.0.0.1:{mon},v1:127.0.0.1:{old_mon}]"
        self._run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", addresses, self._folder / "monmap")
        self._run("ceph-mon", "--mkfs", "-i", "a", "--monmap", self._folder / "monmap")
        self.start("mon")
        disk = str(uuid.uuid4())
        self._run("ceph", "--connect-timeout", "60", "osd", "new", disk)
        self._run("ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", disk)
        self.start("osd")
        uid, access_key, secret_key = _USER
        user = ("user", "create", "--uid", uid, "--display-name", uid, "--access-key", access_key)
        self._run("radosgw-admin", "-n", "client.rgw", *user, "--secret-key", secret_key)
        self.start("gateway")

    def start(self, name: str) -> None:
        """Start 'mon', 'osd' or 'gateway'; the gateway is waited for."""
        words = {
            "mon": ("ceph-mon", "-i", "a", "-f"),
            "osd": ("ceph-osd", "-i", "0", "-f"),
            "gateway": ("radosgw", "-n", "client.rgw", "-f"),
        }[name]
        nowhere = subprocess.DEVNULL
        self._processes[name] = subprocess.Popen(self._words(*words), stdout=nowhere, stderr=nowhere)
        if name == "gateway":
            _wait(lambda: self._answers(), "the gateway does not answer", self._said)

    def kill(self, name: str) -> None:
        """Kill a process, without a chance to write anything."""
        self._processes[name].kill()
        self._processes.pop(name).wait(_PATIENCE_S)

    def close(self) -> None:
        """End every process."""
        for name in tuple(self._processes):
            self.kill(name)

    def client(self) -> Any:
        """Return a client of another make, for what a store does not do: to make buckets."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.options["endpoint"],
            region_name=self.options["region"],
            aws_access_key_id=self.options["access_key_id"],
            aws_secret_access_key=self.options["secret_access_key"],
        )

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.options["endpoint"], timeout=10).close()
        except urllib.error.HTTPError as error:
            return error.code < 500
        except OSError:
            return False
        return True

    def _words(self, command: str, *words: object) -> list[str]:
        return [command, "-c", str(self._folder / "ceph.conf"), *map(str, words)]

    def _run(self, command: str, *words: object) -> None:
        full = [command, *map(str, words)] if command == "monmaptool" else self._words(command, *words)
        done = subprocess.run(full, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
        assert done.returncode == 0, f"{' '.join(full)}: {done.stderr[-2000:]}"

    def _said(self) -> str:
        lines = []
        for path in sorted(self._folder.glob("*.log")):
            lines += [path.name, *path.read_text(errors="replace").splitlines()[-5:]]
        return "\n".join(lines)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(done: Callable[[], bool], problem: str, said: Callable[[], str]) -> None:
    end_s = monotonic_s() + _PATIENCE_S
    while not done():
        assert monotonic_s() < end_s, f"{problem}\n{said()}"
        sleep(0.1)


@contextmanager
def ceph_cluster(folder: Path) -> Iterator[Ceph]:
    """Start a cluster in an empty folder whose path is short: sockets lie in it."""
    cluster = Ceph(folder)
    try:
        cluster.bring_up()
        yield cluster
    finally:
        with suppress(subprocess.TimeoutExpired):
            cluster.close()
