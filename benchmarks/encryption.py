"""Encryption at rest: damage of every kind that is refused, and the speed beside plain AES-256-GCM.

A file of random length is changed in one way a trial: a bit flipped, two chunks swapped, its end cut, a chunk replaced
by that of an earlier version, or another key given. The rivals encrypt the same chunks in memory, nothing around it,
and copy the same file; the slower of the two is what a file can be encrypted at.
"""

from __future__ import annotations

import io
import random
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from benchmarks.common import Bench, alternate, arguments, ratio
from hetero.floor.errors import FileError
from hetero.stores.encryption import CHUNK_BYTES, HEADER_BYTES, EncryptionKey, decrypt, encrypt

CHUNK = 1024
SEALED = CHUNK + 16
KEY = EncryptionKey(secrets.token_bytes(32))


def hidden(data: bytes) -> bytes:
    """Return data as an encrypted file of small chunks."""
    target = io.BytesIO()
    encrypt(io.BytesIO(data), target, KEY, chunk_bytes=CHUNK)
    return target.getvalue()


def flipped(file: bytes, draw: random.Random) -> bytes:
    """Return a file with one bit changed."""
    changed = bytearray(file)
    changed[draw.randrange(len(file))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def swapped(file: bytes, draw: random.Random) -> bytes:
    """Return a file with two of its chunks in each other's place."""
    chunks = [file[at : at + SEALED] for at in range(HEADER_BYTES, len(file), SEALED)]
    first, second = draw.sample(range(len(chunks)), 2)
    chunks[first], chunks[second] = chunks[second], chunks[first]
    return file[:HEADER_BYTES] + b"".join(chunks)


def cut(file: bytes, draw: random.Random) -> bytes:
    """Return the beginning of a file, every other time up to the end of a chunk."""
    if draw.random() < 0.5:
        return file[: HEADER_BYTES + SEALED * draw.randrange((len(file) - HEADER_BYTES) // SEALED)]
    return file[: draw.randrange(len(file))]


def replayed(file: bytes, draw: random.Random) -> bytes:
    """Return a file with one chunk of another version of it, of the same length."""
    data = io.BytesIO()
    decrypt(io.BytesIO(file), data, [KEY])
    older = hidden(data.getvalue())
    begin = HEADER_BYTES + SEALED * draw.randrange(-(-(len(file) - HEADER_BYTES) // SEALED))
    return file[:begin] + older[begin : begin + SEALED] + file[begin + SEALED :]


def accepted(change: Callable[[bytes, random.Random], bytes], trials: int, seed: int) -> int:
    """Return how many changed files were decrypted."""
    draw, count = random.Random(seed), 0
    for _ in range(trials):
        changed = change(hidden(draw.randbytes(draw.randrange(2 * CHUNK, 20 * CHUNK))), draw)
        count += opens(changed, KEY)
    return count


def opens(file: bytes, key: EncryptionKey) -> bool:
    """Return whether a file is decrypted with a key."""
    try:
        decrypt(io.BytesIO(file), None, [key])
    except FileError:
        return False
    return True


def speeds(nbytes: int, folder: Path) -> dict[str, Callable[[], float]]:
    """Return the contestants, each of which gives its own bytes a second; all but the first go from file to file."""
    plain, sealed, target = folder / "plain", folder / "sealed", folder / "target"
    data = secrets.token_bytes(nbytes)
    plain.write_bytes(data)
    chunks = [data[at : at + CHUNK_BYTES] for at in range(0, nbytes, CHUNK_BYTES)]

    def raw() -> float:
        cipher, begin_s = AESGCM(secrets.token_bytes(32)), time.perf_counter()
        for number, chunk in enumerate(chunks):
            cipher.encrypt(number.to_bytes(12, "big"), chunk, b"")
        return nbytes / (time.perf_counter() - begin_s)

    def through(source: Path, to: Path, work: Callable[[IO[bytes], IO[bytes]], object]) -> float:
        to.unlink(missing_ok=True)
        begin_s = time.perf_counter()
        with source.open("rb") as read, to.open("wb") as written:
            work(read, written)
        return nbytes / (time.perf_counter() - begin_s)

    def copied(read: IO[bytes], written: IO[bytes]) -> None:
        while part := read.read(CHUNK_BYTES):
            written.write(part)

    return {
        "AES-256-GCM alone": raw,
        "plain copy": lambda: through(plain, target, copied),
        "encrypt": lambda: through(plain, sealed, lambda read, written: encrypt(read, written, KEY)),
        "decrypt": lambda: through(sealed, target, lambda read, written: decrypt(read, written, [KEY])),
    }


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    trials, nbytes, rounds = (20, 2**22, 2) if given.quick else (1_000, 2**28, 7)
    bench = Bench("encryption", "encryption at rest", ("cryptography",), given.out)
    for what, change in (("a flipped bit", flipped), ("swapped chunks", swapped), ("a cut file", cut)):
        bench.claim(f"{what}: accepted of {trials:,}", accepted(change, trials, len(what)), unit="", at_most=0)
    bench.claim(f"a replayed chunk: accepted of {trials:,}", accepted(replayed, trials, 1), unit="", at_most=0)
    wrong = sum(opens(hidden(b"data"), EncryptionKey(secrets.token_bytes(32))) for _ in range(trials))
    bench.claim(f"a wrong key: accepted of {trials:,}", wrong, unit="", at_most=0)
    with tempfile.TemporaryDirectory() as folder:
        samples = alternate(speeds(nbytes, Path(folder)), rounds)
    for name, found in samples.items():
        bench.measure(name, [each / 1e6 for each in found], "MB/s")
    rivals = ("AES-256-GCM alone", "plain copy")
    slower = min(rivals, key=lambda name: statistics.median(samples[name]))
    for name in ("encrypt", "decrypt"):
        bench.claim(f"speed of {name}", ratio(samples[name], samples[slower]), rival=slower, at_least=0.7)
    bench.finish()


if __name__ == "__main__":
    main()
