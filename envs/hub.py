"""The Hugging Face hub, asked only where it answers at once: no run ever waits for a network."""

from __future__ import annotations

import importlib.util
import os
import socket
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

__all__ = ["gsm8k"]

#: The hub must answer within so many seconds …
REACH_S = 3.0
#: … and the data (5 MB) be here, or come out of the cache, within so many.
LOAD_S = 60.0
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")


def gsm8k() -> Any:
    """Return ``openai/gsm8k`` as the datasets library gives it, or a clause on why it can't be had.

    Returns
    -------
    mapping of str to rows, or str
        Splits ``train`` and ``test``; or the reason, as in "the hub can't be reached".
    """
    if importlib.util.find_spec("datasets") is None:
        return "the package datasets is not installed and no env.path= is given"
    offline = [name for name in OFFLINE if _on(os.environ.get(name))]
    if not offline and within(REACH_S, _reach) is not True:
        return f"{_endpoint()} cannot be reached and no env.path= is given"
    data = within(LOAD_S, _load)  # offline it comes out of the library's cache, or not at all
    if data is None:
        where = f"the cache ({offline[0]} is set)" if offline else "the hub"
        return f"openai/gsm8k could not be loaded from {where} and no env.path= is given"
    return data


def within(seconds: float, function: Callable[[], Any]) -> Any:
    """Return a call's result, or None where it fails or takes longer.

    A thread that is late is left behind as a daemon: name resolution has no time limit of its own.
    """
    result: list[Any] = []

    def work() -> None:
        try:
            result.append(function())
        except Exception:  # whatever the network or the library raises: it is not to be had
            result.append(None)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return result[0] if result else None


def _on(value: str | None) -> bool:
    return (value or "").upper() in ("1", "ON", "YES", "TRUE")


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def _reach() -> bool:
    from urllib.request import getproxies

    parts = urlsplit(_endpoint())
    proxy = getproxies().get(parts.scheme)
    if proxy:
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    port = parts.port or (80 if parts.scheme == "http" else 443)
    with socket.create_connection((parts.hostname or "", port), timeout=REACH_S):
        return True


def _load() -> Any:
    import datasets

    return datasets.load_dataset("openai/gsm8k", "main")
