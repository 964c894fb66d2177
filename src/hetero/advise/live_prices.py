"""What clouds ask for devices today, as gpuhunt knows it: it loads the catalogs of providers over the network.

In: devices, and the package where it is installed. Out: prices, or one line that says why there are none. It must not
let a network that does not answer hold anybody up.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from hetero.advise.prices import Paid, today
from hetero.catalog.values import DeviceSpec

__all__ = ["live_prices"]

_ANSWER_S = 8.0
"""A server that is silent for so long is given up …"""

_ALL_S = 25.0
"""… and all of them together are waited for so long."""


def live_prices(devices: Sequence[DeviceSpec]) -> tuple[dict[str, Paid], str]:
    """Ask gpuhunt for the cheapest offer on demand of each device; returns prices, and a note where that cannot be.

    Notes
    -----
    The providers whose catalogs gpuhunt publishes are asked, which needs no account; those that it would ask one by one
    are not. An offer is taken for a device of the same name and memory; offers do not tell SXM from PCIe, so one price
    then stands for both. gpuhunt is under the MPL-2.0, with copyleft for its own files; hetero does not include it.
    """
    try:
        gpuhunt = import_module("gpuhunt")
    except ImportError:
        return {}, "live prices need gpuhunt, which is not installed: pip install 'hetero-core[prices]'"
    answer: list[Any] = []
    asking = threading.Thread(target=lambda: answer.append(_asked(gpuhunt)), daemon=True)
    asking.start()
    asking.join(_ALL_S)
    offers, note = answer[0] if answer else ([], f"gpuhunt gave no prices within {_ALL_S:g} s")
    found: dict[str, Paid] = {}
    for spec in devices:
        fitting = [offer for offer in offers if _is_offer_of(offer, spec)]
        if fitting:
            best = min(fitting, key=lambda offer: offer.price / offer.gpu_count)
            found[spec.name] = Paid(best.price / best.gpu_count, f"gpuhunt: {best.provider}", today().isoformat())
    return found, note


def _asked(gpuhunt: Any) -> tuple[list[Any], str]:
    """Return the offers of the providers that could be read, and what to say of the others."""
    try:
        with _quiet():
            catalog = gpuhunt.Catalog()
            catalog.load()
            return catalog.query(provider=list(catalog.catalog), min_gpu_count=1, spot=False), ""
    except Exception as error:  # noqa: BLE001  a network that does not answer, in whatever words
        cause = error.__cause__ or error
        told = " ".join(str(cause).split())[:160]
        return [], f"gpuhunt gave no prices: {type(cause).__name__}: {told}; give your own with --prices"


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep gpuhunt from printing a traceback for each provider, and from waiting for ever."""
    logger, before_s = logging.getLogger("gpuhunt"), socket.getdefaulttimeout()
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    socket.setdefaulttimeout(_ANSWER_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before_s)
        logger.setLevel(level)


def _is_offer_of(offer: Any, spec: DeviceSpec) -> bool:
    """Compare names without marks and blanks, and memory within a tenth."""
    if not offer.gpu_name or not offer.gpu_count or not offer.price or spec.memory_bytes is None:
        return False
    ours = "".join(filter(str.isalnum, spec.name.casefold()))
    theirs = "".join(filter(str.isalnum, str(offer.gpu_name).casefold()))
    size = (offer.gpu_memory or 0.0) * 2**30
    return ours.startswith(theirs) and abs(size / spec.memory_bytes - 1.0) < 0.1
