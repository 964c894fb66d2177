"""Object stores by URL: opened once, with credentials by the stores' own conventions, which are never shown.

In: a URL and options. Out: the store of obstore and the name below its root, and errors on one line.
It must not know what is kept there; obstore is imported when a URL is opened.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from hetero.floor import settings
from hetero.floor.errors import BadValueError, MissingPackageError
from hetero.floor.extras import is_there
from hetero.floor.text import single_line

if TYPE_CHECKING:
    import obstore.store

__all__ = ["BY_ENVIRONMENT", "WEB", "Storage", "first_line", "is_url", "open_url", "options_of", "storage_of"]

WEB = ("http", "https")

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_S3 = ("s3", "s3a")
_ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE")
_PROFILES = ("AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE")
_HARMLESS = re.compile(
    r"(aws_|azure_|google_)?(storage_)?"
    r"(endpoint(_url(_s3)?)?|(default_)?region|bucket(_name)?|access_key_id|account_name|container_name|allow_http"
    r"|virtual_hosted_style_request|skip_signature|conditional_put|copy_if_not_exists|checksum_algorithm"
    r"|disable_bulk_delete|unsigned_payload|request_payer|use_emulator|use_fabric_endpoint)"
)
"""Options that are no secret; whatever else there is may be one."""


class Storage(tuple[tuple[str, str], ...]):
    """Options of an object store beyond those of the environment, such as its endpoint; secrets are never shown.

    Examples
    --------
    >>> Storage([("endpoint", "http://127.0.0.1:9000"), ("secret_access_key", "abc")])
    Storage(endpoint='http://127.0.0.1:9000', secret_access_key=…)
    """

    __slots__ = ()

    def __repr__(self) -> str:
        shown = (f"{name}={value!r}" if _HARMLESS.fullmatch(name.lower()) else f"{name}=…" for name, value in self)
        return f"Storage({', '.join(shown)})"

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that may be secret."""
        return tuple(value for name, value in self if value and not _HARMLESS.fullmatch(name.lower()))


BY_ENVIRONMENT = Storage()
"""No options beyond those of the environment."""


def storage_of(given: Mapping[str, object] | None) -> Storage:
    """Return options of an object store in a form that travels."""
    return Storage(sorted((str(key), str(value)) for key, value in (given or {}).items()))


def is_url(path: str | Path) -> bool:
    """Return whether this is a URL, and no path.

    Examples
    --------
    >>> is_url("s3://bucket/key"), is_url("C:/key")
    (True, False)
    """
    return _URL.match(str(path)) is not None


def open_url(url: str, storage: Storage) -> tuple[obstore.store.ObjectStore, str]:
    """Return the store of a URL, and the name of what the URL names in it.

    Raises
    ------
    BadValueError
        No such store is known, its options are wrong, or credentials stand in the URL.
    MissingPackageError
        obstore is not installed.
    """
    parts = urlsplit(url)
    if parts.password and parts.scheme.lower() not in WEB:
        place = f"{parts.scheme}://…@{parts.netloc.rpartition('@')[2]}"
        raise BadValueError(
            f"{place} has credentials, and addresses are printed and kept",
            remedy="give them by the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and their kin)",
        )
    return _store(parts.scheme.lower(), parts.netloc, storage), unquote(parts.path).lstrip("/")


@functools.cache
def _store(scheme: str, place: str, storage: Storage) -> object:
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise MissingPackageError(
            f"{scheme}://{place} needs the package obstore", remedy="pip install 'hetero-core[batch]'"
        ) from error
    try:
        return from_url(f"{scheme}://{'' if scheme == 'memory' else place}", **options_of(scheme, storage))
    except Exception as error:
        raise BadValueError(
            f"{scheme}://{place} cannot be opened: {first_line(error, storage)}",
            remedy="give s3://, gs://, az://, http:// or https://, and the store's options",
        ) from error


def options_of(scheme: str, storage: Storage) -> dict[str, object]:
    """Return what obstore wants; plain HTTP is allowed where the user wrote it."""
    if scheme in WEB:
        return {"client_options": {"allow_http": True}}
    if scheme == "memory":
        return {}
    endpoints = settings.present(_ENDPOINTS).values() if scheme in _S3 else ()
    asked = {
        name: value for name, value in storage if name.lower().endswith("allow_http")
    }  # of the client, not the store
    plain = any(value.startswith("http://") for value in (*(value for _, value in storage), *filter(None, endpoints)))
    plain = plain or "true" in (value.lower() for value in asked.values())
    options: dict[str, object] = {"config": {name: value for name, value in storage if name not in asked}}
    if plain:
        options["client_options"] = {"allow_http": True}
    if scheme in _S3 and not storage.secrets:
        options |= _of_profile()
    return options


def _of_profile() -> dict[str, object]:
    """Return who brings credentials where a profile of the AWS tools has them, which obstore does not read itself."""
    if any(settings.present(_KEYS).values()):
        return {}
    profile, file = settings.present(_PROFILES).values()
    if not profile and not (Path(file) if file else Path(os.path.expanduser("~/.aws/credentials"))).is_file():
        return {}
    if not is_there("boto3"):
        if not profile:
            return {}
        raise MissingPackageError(f"the profile {profile!r} of AWS_PROFILE needs boto3", remedy="pip install boto3")
    from obstore.auth.boto3 import Boto3CredentialProvider

    return {"credential_provider": Boto3CredentialProvider()}


def first_line(error: BaseException, storage: Storage = BY_ENVIRONMENT) -> str:
    """Return what a file system, a store or a reader says, on one line and without secrets."""
    strerror = getattr(error, "strerror", None)
    line = str(strerror or (str(error).splitlines() or [type(error).__name__])[0])
    for secret in storage.secrets:
        line = line.replace(secret, "…")
    return single_line(line)
