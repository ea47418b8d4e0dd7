"""Low-rank adapters on a frozen base (Hu et al. 2021, LoRA, arXiv:2106.09685), made by peft.

An adapted layer computes ``W·x + (alpha / rank)·B·A·x`` and only A and B are trained; B starts at
0, so that a fresh adapter changes nothing. With ``quantize`` the base's weights are kept in 4 bits
(Dettmers et al. 2023, QLoRA, arXiv:2305.14314).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.errors import UserError

__all__ = [
    "LoraKnobs",
    "adapt",
    "adapted_layers",
    "base_name",
    "base_tensors",
    "continue_adapter",
    "is_adapted",
    "is_adapter_folder",
    "is_exact",
    "keep_unpacked",
    "layers_of",
    "low_rank",
    "merged_tensors",
    "quantization",
    "refuse_beyond_low_rank",
    "save_adapter",
    "weight",
]

_NAME = "default"  # peft's own for the only adapter
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")
_GROUPS = {"attention": _ATTENTION, "mlp": _MLP, "attention+mlp": (*_ATTENTION, *_MLP)}
_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."  # of every name in a peft folder
_A, _B = f".lora_A.{_NAME}.weight", f".lora_B.{_NAME}.weight"


@dataclass(frozen=True)
class LoraKnobs:
    """Which layers get an adapter, and of which size."""

    #: r of B·A; 0 trains the whole model
    rank: int = 0
    #: the adapter's output is scaled by alpha / rank; None takes 2 · rank
    alpha: float | None = None
    #: attention, mlp, attention+mlp (names of the Llama family), all-linear, or a list of names
    targets: str | tuple[str, ...] = "attention+mlp"

    def __post_init__(self) -> None:
        """Refuse what peft would take and train nothing with."""
        if self.rank < 0 or (self.alpha is not None and not self.alpha > 0):
            raise UserError(
                f"model.lora needs rank ≥ 0 and alpha > 0 (got {self.rank} and {self.alpha})."
            )
        if self.alpha is not None and not self.rank:
            raise UserError(
                "model.lora.alpha scales an adapter, of which model.lora.rank=0 has none: give a"
                " rank, as in model.lora.rank=16."
            )
        known = (*_GROUPS, "all-linear")
        if not self.targets or (isinstance(self.targets, str) and self.targets not in known):
            raise UserError(
                f"model.lora.targets is {', '.join(known)} or a list of layers' names (got"
                f" {self.targets!r})."
            )


def adapt(model: Any, knobs: LoraKnobs, base: str) -> None:
    """Freeze a model and put a fresh adapter into it, in place.

    Parameters
    ----------
    model : PreTrainedModel
        Its linear layers may be quantised.
    knobs : LoraKnobs
        With ``rank`` ≥ 1.
    base : str
        The name that an exported adapter gives its base.

    Raises
    ------
    UserError
        Where peft is missing, or the model has no layer of these names.
    """
    peft = _peft()
    names = {name.rpartition(".")[2] for name, m in model.named_modules() if _is_projection(m)}
    everything = knobs.targets == "all-linear"
    targets: Any = "all-linear" if everything else layers_of(knobs.targets)
    missing = [] if everything else [name for name in targets if name not in names]
    if missing:
        raise UserError(
            f"model.lora.targets names {', '.join(missing)}, which this"
            f" {type(model).__name__} doesn't have: take all-linear, or of"
            f" {', '.join(sorted(names))}."
        )
    chosen = [
        m
        for name, m in model.named_modules()
        if _is_projection(m) and (everything or name.rpartition(".")[2] in targets)
    ]
    widest = max((min(m.in_features, m.out_features) for m in chosen), default=knobs.rank)
    if knobs.rank > widest:
        raise UserError(
            f"model.lora.rank={knobs.rank} is more than the {widest} that the layers themselves"
            " have: 8 to 64 are usual, and rank 0 trains the whole model."
        )
    config = peft.LoraConfig(
        r=knobs.rank,
        lora_alpha=knobs.alpha or 2 * knobs.rank,
        target_modules=targets,
        lora_dropout=0.0,  # the ratio of two forward passes must not depend on chance
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
    )
    peft.inject_adapter_in_model(config, model, _NAME)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:  # small steps are lost in 16 bits, whatever the base is kept in
            parameter.data = parameter.data.float()


def layers_of(targets: str | tuple[str, ...]) -> list[str]:
    """Return the names of layers that ``model.lora.targets`` stands for."""
    return list(_GROUPS[targets] if isinstance(targets, str) else targets)


def continue_adapter(model: Any, folder: Path) -> None:
    """Freeze a model and put the adapter of a peft folder into it, to be trained on.

    Raises
    ------
    UserError
        Where peft is missing, or the folder doesn't fit the model or trains whole layers too.
    """
    peft = _peft()
    try:
        peft.PeftModel.from_pretrained(model, str(folder), is_trainable=True)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        line = (str(error).strip().splitlines() or [""])[0]
        raise UserError(f"the adapter in {folder} can't be put into its base: {line}") from error
    whole = [n for n, p in model.named_parameters() if p.requires_grad and ".lora_" not in n]
    if whole:  # no checkpoint of an adapted policy would hold them
        raise UserError(
            f"the adapter in {folder} comes with weights that are no low-rank matrices, such as"
            f" {whole[0]} (modules_to_save, trainable tokens or biases): add it to its base with"
            " peft's merge_and_unload(), and train the result with model.lora.rank."
        )


def is_adapter_folder(path: Path) -> bool:
    """Return whether a folder holds an adapter and not a whole model."""
    return (path / _CONFIG).is_file()


def base_name(folder: Path) -> str:
    """Return the name of the model that an adapter belongs to.

    Raises
    ------
    UserError
        Where the folder doesn't say, or holds another kind of adapter.
    """
    try:
        config = json.loads((folder / _CONFIG).read_text("utf-8"))
        kind, name = config.get("peft_type"), config.get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{folder / _CONFIG} can't be read: {error}.") from error
    if kind != "LORA":
        raise UserError(f"the adapter in {folder} is of the kind {kind}; LORA is supported.")
    if not name:
        raise UserError(f"{folder / _CONFIG} names no base_model_name_or_path: add it there.")
    return str(name)


def quantization(kind: str | None, dtype: torch.dtype) -> Any:
    """Return transformers' settings for 4-bit weights, None where there are none.

    NF4 with double quantisation: 4.127 bits per weight. ``dtype`` is that of the products, for
    which weights are unpacked.

    Raises
    ------
    UserError
        Where bitsandbytes or accelerate is missing.
    """
    if kind is None:
        return None
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        import accelerate  # noqa: F401
        import bitsandbytes  # noqa: F401
        from transformers import BitsAndBytesConfig
    except ImportError as error:
        raise UserError(
            f"model.quantize={kind} needs the package {error.name}, which is not installed:"
            " `pip install 'algorithm-zoo[qlora]'`."
        ) from error
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=kind,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def keep_unpacked(model: Any) -> None:
    """Let no forward pass lay 4-bit weights out anew, as bitsandbytes does on CPUs in evaluation.

    The backward pass and merging read the usual layout.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def is_adapted(model: Any) -> bool:
    """Return whether a model holds an adapter."""
    return _NAME in (getattr(model, "peft_config", None) or {})


def adapted_layers(model: Any) -> dict[str, int]:
    """Return the names of the layers that the adapter changes, and its rank in each."""
    return {
        name.removesuffix(_A): parameter.shape[0]
        for name, parameter in model.named_parameters()
        if name.endswith(_A)
    }


def refuse_beyond_low_rank(model: Any) -> None:
    """Refuse an adapter that is more than A and B of linear layers, which sum up to one weight.

    Raises
    ------
    UserError
        Naming what else there is.
    """
    rest = [n for n, _ in model.named_parameters() if ".lora_" in n and not n.endswith((_A, _B))]
    if rest:
        raise UserError(
            f"an adapter with {rest[0]} (DoRA, a bias or an embedding of its own) is no weight"
            " that could be added to its base's: rollout=hf samples with it as it is, and"
            " `zoo export` writes it as a peft folder."
        )


def is_exact(module: Any) -> bool:
    """Return whether a layer is a linear one, or one with an adapter, and nothing besides."""
    if type(module) is nn.Linear:
        return True
    return (
        type(module).__module__ == "peft.tuners.lora.layer"
        and type(module).__name__ == "Linear"
        and type(module.base_layer) is nn.Linear
        and list(module.active_adapters) == [_NAME]
        and not module.merged
        and not module.disable_adapters
        and not getattr(module, "use_dora", {}).get(_NAME, False)
        and module.lora_B[_NAME].bias is None
    )


def low_rank(module: Any, x: Tensor) -> Tensor | None:
    """Return what a layer's adapter adds, ``(alpha / rank)·B·A·x``; None where it has none."""
    if not hasattr(module, "lora_A"):
        return None
    a, b = module.lora_A[_NAME].weight, module.lora_B[_NAME].weight
    return F.linear(F.linear(x, a.to(x.dtype)), b.to(x.dtype)) * module.scaling[_NAME]


def weight(module: Any) -> Tensor:
    """Return a linear layer's weight [out, in], its adapter added, in at least 16 bits."""
    base = getattr(module, "base_layer", module)
    state = getattr(base.weight, "quant_state", None)
    whole: Tensor = base.weight
    if state is not None:
        from bitsandbytes.functional import dequantize_4bit

        whole = dequantize_4bit(base.weight.data, state)
    if not hasattr(module, "lora_A"):
        return whole
    added: Tensor = module.get_delta_weight(_NAME)
    return (whole.to(added.dtype) + added).to(whole.dtype)


def merged_tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield a model's weights as its architecture names them, adapters added, nothing quantised.

    Raises
    ------
    UserError
        Where the adapter is of a kind that can't be added.
    """
    refuse_beyond_low_rank(model)
    return _tensors(model, weight)


def base_tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield a model's weights as its architecture names them, no adapter, nothing quantised."""
    return _tensors(model, lambda layer: weight(getattr(layer, "base_layer", layer)))


@torch.no_grad()
def _tensors(model: Any, plain: Callable[[Any], Tensor]) -> Iterator[tuple[str, Tensor]]:
    layers = {name: m for name, m in model.named_modules() if _is_projection(m)}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if ".lora_" in name or ".weight." in name:  # the latter: scales of a quantised weight
            continue
        owner, _, kind = name.rpartition(".")
        owner = owner.removesuffix(".base_layer")
        if kind == "weight" and owner in layers:
            yield f"{owner}.weight", plain(layers[owner])
        else:
            yield f"{owner}.{kind}", tensor.detach()


def save_adapter(model: Any, folder: Path) -> None:
    """Write the adapter as a folder that peft, transformers and vLLM read."""
    from safetensors.torch import save_file

    peft = _peft()
    # Its default asks the hub whether the base's vocabulary was larger there.
    state = peft.get_peft_model_state_dict(model, adapter_name=_NAME, save_embedding_layers=False)
    folder.mkdir(parents=True, exist_ok=True)
    named = {
        f"{_PREFIX}{name.removeprefix(_PREFIX)}": tensor.detach().cpu().contiguous()
        for name, tensor in state.items()
    }
    save_file(named, str(folder / _WEIGHTS), metadata={"format": "pt"})
    config = model.peft_config[_NAME]
    trained, config.inference_mode = config.inference_mode, True
    config.save_pretrained(str(folder))
    config.inference_mode = trained


def _is_projection(module: Any) -> bool:
    """Whether it is a linear layer, perhaps quantised or adapted, but no part of an adapted one."""
    if hasattr(module, "base_layer"):
        return hasattr(module, "in_features")
    return isinstance(module, nn.Linear)


def _peft() -> Any:
    # peft imports bitsandbytes where that is installed, which tells of kernels it did not find
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        import peft
    except ImportError as error:
        raise UserError(
            "model.lora needs the package peft, which is not installed:"
            " `pip install 'algorithm-zoo[lora]'`."
        ) from error
    return peft
