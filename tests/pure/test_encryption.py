from __future__ import annotations

import io
import json
import pickle
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from hetero.cli.main import app
from hetero.floor.errors import BadValueError, FileError, SerialisationError
from hetero.stores.encryption import (
    HEADER_BYTES,
    EncryptedFile,
    EncryptedStore,
    EncryptionKey,
    decrypt,
    encrypt,
    read_key,
    rekey,
)
from hetero.stores.files import FileStore

KEY, OTHER = EncryptionKey(bytes(range(32))), EncryptionKey(bytes(32))
CHUNK = 64
SEALED = CHUNK + 16


def hidden(data: bytes, key: EncryptionKey = KEY, chunk_bytes: int = CHUNK) -> bytes:
    target = io.BytesIO()
    encrypt(io.BytesIO(data), target, key, chunk_bytes=chunk_bytes)
    return target.getvalue()


def shown(data: bytes, *keys: EncryptionKey) -> bytes:
    target = io.BytesIO()
    decrypt(io.BytesIO(data), target, keys or (KEY,))
    return target.getvalue()


plain = st.binary(max_size=5 * CHUNK)


@settings(max_examples=50)
@given(plain)
def test_what_was_encrypted_comes_back_and_is_not_in_the_file(data: bytes) -> None:
    found = hidden(data)
    assert shown(found) == data
    assert len(data) < 8 or data not in found
    assert hidden(data) != found


@pytest.mark.parametrize("length", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 5])
def test_every_length_has_as_many_chunks_as_it_needs(length: int) -> None:
    data = bytes(length)
    found = hidden(data)
    assert len(found) == HEADER_BYTES + length + 16 * max(1, -(-length // CHUNK))
    assert shown(found) == data


@settings(max_examples=50)
@given(plain, st.integers(min_value=0), st.integers(0, 7))
def test_a_flipped_bit_is_refused_wherever_it_is(data: bytes, place: int, bit: int) -> None:
    found = bytearray(hidden(data))
    found[place % len(found)] ^= 1 << bit
    with pytest.raises(FileError):
        shown(bytes(found))


@settings(max_examples=50)
@given(st.binary(min_size=2 * CHUNK, max_size=6 * CHUNK), st.data())
def test_chunks_in_another_order_are_refused(data: bytes, choose: st.DataObject) -> None:
    found = hidden(data)
    chunks = [found[at : at + SEALED] for at in range(HEADER_BYTES, len(found), SEALED)]
    first, second = sorted(choose.draw(st.sets(st.integers(0, len(chunks) - 1), min_size=2, max_size=2)))
    chunks[first], chunks[second] = chunks[second], chunks[first]
    with pytest.raises(FileError, match="is changed, cut or not in its place"):
        shown(found[:HEADER_BYTES] + b"".join(chunks))


@settings(max_examples=50)
@given(plain, st.integers(min_value=0))
def test_a_file_that_is_cut_anywhere_is_refused(data: bytes, length: int) -> None:
    found = hidden(data)
    with pytest.raises(FileError):
        shown(found[: length % len(found)])


def test_a_file_that_is_cut_between_two_chunks_or_goes_on_is_refused() -> None:
    found = hidden(bytes(4 * CHUNK))
    for damaged in (found[: HEADER_BYTES + 2 * SEALED], found + b"\0", found + found[-SEALED:]):
        with pytest.raises(FileError):
            shown(damaged)


@settings(max_examples=50)
@given(st.binary(min_size=CHUNK, max_size=4 * CHUNK), st.integers(min_value=0))
def test_a_chunk_of_an_earlier_version_of_the_file_is_refused(data: bytes, number: int) -> None:
    older, newer = hidden(data), bytearray(hidden(data))
    begin = HEADER_BYTES + number % -(-len(data) // CHUNK) * SEALED
    newer[begin : begin + SEALED] = older[begin : begin + SEALED]
    with pytest.raises(FileError):
        shown(bytes(newer))


@settings(max_examples=50)
@given(plain, st.binary(min_size=32, max_size=32))
def test_another_key_is_refused_by_its_name(data: bytes, secret: bytes) -> None:
    with pytest.raises(FileError, match=f"is encrypted with the key {KEY.id}, and given is"):
        shown(hidden(data), EncryptionKey(secret))


@settings(max_examples=50)
@given(plain, st.integers(0, 6 * CHUNK), st.integers(0, 6 * CHUNK))
def test_any_part_is_read_by_its_chunks(data: bytes, start: int, length: int) -> None:
    file = EncryptedFile(io.BytesIO(hidden(data)), [KEY])
    assert file.nbytes == len(data)
    assert file.read(start, length) == data[start : start + length]


def test_a_part_of_a_file_that_is_cut_is_refused() -> None:
    found = hidden(bytes(4 * CHUNK))
    with pytest.raises(FileError, match="chunk 2 is changed, cut"):
        EncryptedFile(io.BytesIO(found[: HEADER_BYTES + 3 * SEALED]), [KEY])
    with pytest.raises(BadValueError, match="count from 0"):
        EncryptedFile(io.BytesIO(found), [KEY]).read(-1, 2)


class _Zeros(io.RawIOBase):
    """A long stream of zeros."""

    def __init__(self, length: int) -> None:
        self._left = length

    def read(self, size: int = -1) -> bytes:
        part = min(self._left, size)
        self._left -= part
        return bytes(part)


def test_a_stream_takes_a_few_chunks_of_memory(tmp_path: Path) -> None:
    length = 24 * 2**20
    tracemalloc.start()
    try:
        with (tmp_path / "hidden").open("wb") as target:
            assert encrypt(_Zeros(length), target, KEY) == length  # type: ignore[arg-type]
        with (tmp_path / "hidden").open("rb") as source:
            assert decrypt(source, None, [KEY]) == length
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 2**20


def test_a_new_key_changes_the_header_alone() -> None:
    before = hidden(bytes(3 * CHUNK))
    file = io.BytesIO(before)
    rekey(file, [KEY], OTHER)
    after = file.getvalue()
    assert after[HEADER_BYTES:] == before[HEADER_BYTES:]
    assert shown(after, OTHER) == bytes(3 * CHUNK)
    with pytest.raises(FileError, match="is encrypted with the key"):
        shown(after, KEY)
    with pytest.raises(FileError):
        rekey(io.BytesIO(before), [OTHER], KEY)


def test_the_header_of_another_file_is_refused() -> None:
    first, second = hidden(b"first"), hidden(b"second")
    with pytest.raises(FileError):
        shown(first[:HEADER_BYTES] + second[HEADER_BYTES:])
    with pytest.raises(FileError, match="is not encrypted by hetero"):
        shown(b"plain text that nobody has encrypted, long enough for a header of this format, which it has not" * 2)


def test_a_key_is_neither_shown_nor_pickled() -> None:
    assert repr(OTHER) == f"EncryptionKey(id='{OTHER.id}')"
    assert KEY.id != OTHER.id
    with pytest.raises(SerialisationError, match="a key is not pickled"):
        pickle.dumps(KEY)


# --- keys ----------------------------------------------------------------------------------------------------------


def key_file(folder: Path, content: bytes = bytes(range(32)), mode: int = 0o600) -> Path:
    path = folder / "key"
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    "content",
    [
        bytes(range(32)),
        bytes(range(32)).hex().encode() + b"\n",
        b"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n",
    ],
)
def test_a_key_is_raw_hexadecimal_or_base64(content: bytes, tmp_path: Path) -> None:
    assert read_key(key_file(tmp_path, content)).id == KEY.id


@pytest.mark.parametrize("content", [b"", b"short", bytes(31), bytes(33), b"a" * 63, b"password\n"])
def test_a_key_of_the_wrong_length_is_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"key has no key of 32 bytes; give 32 bytes as they are"):
        read_key(key_file(tmp_path, content))


@pytest.mark.skipif(sys.platform == "win32", reason="files have no modes there")
def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadValueError, match="is a secret, and others may read or write it; chmod 600"):
        read_key(key_file(tmp_path, mode=0o644))


def test_a_key_comes_from_a_variable_or_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_KEY", bytes(range(32)).hex())
    assert read_key(variable="TEAM_KEY").id == KEY.id
    printing = f"{sys.executable} -c 'print(bytes(range(32)).hex())'"
    assert read_key(command=printing).id == KEY.id


def test_what_is_wrong_with_a_place_of_a_key_is_told_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEAM_KEY", raising=False)
    for place, words in (
        ({"variable": "TEAM_KEY"}, "the environment variable TEAM_KEY is not set"),
        ({"command": "no-such-program-here --token wq7"}, "no-such-program-here printed no key"),
        ({"command": f"{sys.executable} -c 'print(\"wq7\"); raise SystemExit(3)'"}, "it ended with 3"),
        ({"command": f"{sys.executable} -c 'print(\"wq7\")'"}, "has no key of 32 bytes"),
        ({"command": " "}, "is empty"),
        ({"command": "'"}, "cannot be read"),
        ({"file": "/no/such/key"}, "/no/such/key cannot be read"),
        ({"file": "a", "variable": "b"}, "2 places of a key are given"),
        ({}, "0 places of a key are given"),
    ):
        with pytest.raises(BadValueError, match=words) as caught:
            read_key(**place)  # type: ignore[arg-type]
        assert "wq7" not in str(caught.value)


# --- the store -----------------------------------------------------------------------------------------------------


def test_an_encrypted_store_refuses_the_value_of_another_key_and_reads_with_older_keys(tmp_path: Path) -> None:
    beneath = FileStore(tmp_path)
    store = EncryptedStore(beneath, KEY)
    store.put("a", b"first")
    store.put("b", b"second")
    assert b"first" not in (beneath.get("a") or b"")
    assert not store.put_if_absent("a", b"third")
    newer = EncryptedStore(beneath, OTHER, older=[KEY])
    assert (newer.get("a"), newer.list(), newer.get("none")) == (b"first", ("a", "b"), None)
    beneath.put("a", beneath.get("b") or b"")
    with pytest.raises(FileError, match="the value of 'a' is damaged: its header is changed, or is that of another"):
        store.get("a")
    beneath.put("a", b"plain")
    with pytest.raises(FileError, match="the value of 'a' is not encrypted by hetero"):
        store.get("a")


# --- the command ---------------------------------------------------------------------------------------------------


def run(*words: object) -> tuple[int, str, str]:
    """Run `hetero data`; returns the exit code, what it printed, and its error."""
    result = CliRunner().invoke(app, ["data", *map(str, words)])
    error = result.exception
    return getattr(error, "exit_code", result.exit_code), result.stdout, str(error or "")


def test_a_file_is_encrypted_verified_given_a_new_key_and_decrypted(tmp_path: Path) -> None:
    key, source, secret, back = key_file(tmp_path), tmp_path / "in", tmp_path / "out", tmp_path / "back"
    newer = tmp_path / "newer"
    newer.write_bytes(bytes(32))
    newer.chmod(0o600)
    source.write_bytes(b"text" * 1000)
    assert run("encrypt", "--key-file", key, source, secret)[0] == 0
    assert b"text" not in secret.read_bytes()
    assert run("verify", "--key-file", key, secret)[1] == f"{secret}: sound, 4 KB\n"
    assert run("rekey", "--key-file", key, "--new-key-file", newer, secret)[0] == 0
    code, _, error = run("decrypt", "--key-file", key, secret, back)
    assert (code, back.exists()) == (3, False)
    assert error.startswith(f"{secret} is encrypted with the key {OTHER.id}, and given is {KEY.id}")
    code, out, _ = run("decrypt", "--key-file", newer, secret, back, "--json")
    assert (code, json.loads(out)["bytes"], back.read_bytes()) == (0, 4000, b"text" * 1000)


def test_a_change_of_keys_that_is_cut_leaves_the_old_header_beside_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, secret, beside = key_file(tmp_path), tmp_path / "out", tmp_path / ".out.header"
    newer = tmp_path / "newer"
    newer.write_bytes(bytes(32))
    newer.chmod(0o600)
    whole = hidden(bytes(1000))
    secret.write_bytes(whole)
    words = ("rekey", "--key-file", key, "--new-key-file", newer, secret)
    assert run("rekey", "--key-file", newer, "--new-key-file", key, secret)[0] == 3  # the wrong old key
    assert not beside.exists()

    def torn(file: io.BufferedRandom, *_: object) -> None:
        file.seek(0)
        file.write(b"half of a header")
        raise OSError(5, "power cut")

    with monkeypatch.context() as broken:
        broken.setattr("hetero.stores.encryption.rekey", torn)
        assert run(*words)[1:] == ("", f"{secret} cannot be written: power cut; see that the disk is sound")
    assert secret.read_bytes() != whole
    code, _, error = run(*words)
    assert code == 3
    assert f"{beside} is there: a change of the key of {secret} did not come to its end" in error
    with secret.open("r+b") as file:
        file.write(beside.read_bytes())
    assert secret.read_bytes() == whole
    beside.unlink()
    assert run(*words)[0] == 0
    assert not beside.exists()


def test_a_damaged_file_is_neither_sound_nor_decrypted_and_nothing_is_half_written(tmp_path: Path) -> None:
    key, secret, back = key_file(tmp_path), tmp_path / "out", tmp_path / "back"
    damaged = bytearray(hidden(bytes(1000)))
    damaged[-20] ^= 1
    secret.write_bytes(damaged)
    back.write_bytes(b"before")
    code, out, _ = run("verify", "--key-file", key, secret)
    assert code == 1
    assert out.startswith(f"{secret} is damaged from byte 960 on: chunk 15 is changed, cut or not in its place")
    code, _, error = run("decrypt", "--key-file", key, secret, back)
    assert (code, back.read_bytes()) == (3, b"before")
    assert "is damaged from byte 960 on" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "key", "out"]


def test_what_a_command_needs_is_told_in_one_line(tmp_path: Path) -> None:
    key, secret = key_file(tmp_path), tmp_path / "out"
    secret.write_bytes(hidden(b"1"))
    for words, code, told in (
        (("encrypt", secret, "x"), 2, "the key: one place is needed; give --key-file, --key-env or --key-command"),
        (("rekey", "--key-file", key, secret), 2, "the new key: one place is needed; give --new-key-file"),
        (("encrypt", "--key-file", key, tmp_path / "none", "x"), 3, "none cannot be read: No such file"),
        (("encrypt", "--key-file", key, secret, tmp_path), 2, "is a folder, and cannot be written as a file"),
        (("decrypt", "--key-file", key, key, tmp_path / "x"), 3, "is not encrypted by hetero"),
    ):
        found, _, error = run(*words)
        assert (found, told in error) == (code, True), error
        assert "\n" not in error
    assert not (tmp_path / "x").exists()
