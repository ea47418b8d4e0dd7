"""Our own forward pass of the Llama family, on the parameters of a transformers model.

It computes what ``LlamaForCausalLM``, ``Qwen2ForCausalLM`` and ``Qwen3ForCausalLM`` compute (a test
compares each), with three differences in how: tokens are packed (no padding in the matrix
products), each different prompt is computed once and its completions attend to it, and attention
is a batched matrix product where that is faster. Parameters stay where transformers put them, so
loading, saving and whatever else works on the module is untouched.

Left out: sliding windows, rotary embeddings that change with the length, dropout. Models with
those, and every other architecture, go through transformers' own forward (`transformers_forward`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from zoo.policies.adapters import is_exact, low_rank
from zoo.policies.layout import Packing, TextRows
from zoo.policies.llama_ops import attend, rms_norm, rotate, swiglu

__all__ = ["LlamaForward"]

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
# Scores of one layer above which the fused kernel is taken on a CPU too: the batched product
# keeps them all for the backward pass.
MAX_SCORES = 2**25


class LlamaForward:
    """Hidden states of completions under a Llama-family model.

    Parameters
    ----------
    model : nn.Module
        A transformers causal LM for which `supports` is True.
    dtype : torch.dtype
        Of the matrix products and the attention; norms, rotation and the residual stream stay in
        float32.
    checkpointing : bool
        Keep one tensor per layer and recompute the rest in the backward pass (non-reentrant).
    fused_attention : bool, optional
        Take torch's scaled_dot_product_attention; by default on accelerators, and on a CPU from
        sizes where memory matters.
    """

    plain_head = True

    def __init__(
        self,
        model: Any,
        dtype: torch.dtype,
        *,
        checkpointing: bool = False,
        fused_attention: bool | None = None,
    ) -> None:
        self.model, self.dtype, self.checkpointing = model, dtype, checkpointing
        self.fused_attention = fused_attention
        config = model.config
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.size: int = model.model.layers[0].self_attn.head_dim

    @staticmethod
    def supports(model: Any) -> bool:
        """Whether the model is of the family and uses nothing that was left out."""
        if type(model).__name__ not in ARCHITECTURES:
            return False
        if not type(model).__module__.startswith("transformers."):
            return False
        kinds = getattr(model.config, "layer_types", None) or ()
        if any(kind != "full_attention" for kind in kinds):
            return False
        if getattr(model.model.rotary_emb, "rope_type", "default") in ("dynamic", "longrope"):
            return False
        projections = [m for m in model.modules() if hasattr(m, "in_features")]
        return all(is_exact(m) for m in projections)

    def head(self) -> tuple[Tensor, Tensor | None]:
        """Weight [V, D] and bias of the output layer."""
        return self.model.lm_head.weight, self.model.lm_head.bias

    def hidden(self, rows: TextRows) -> Tensor:
        """[L, D] last hidden state before each live completion token."""
        packing = Packing.of(rows)
        x, _ = self.layers(packing)
        x = x.index_select(0, packing.predict)
        norm = self.model.model.norm
        return rms_norm(x, norm.weight, norm.variance_epsilon, self.dtype)

    def layers(
        self, packing: Packing, keep_prompts: bool = False
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Run all layers over a packed stream.

        Returns
        -------
        tuple
            [N, D] residual stream before the final norm, and with ``keep_prompts`` each layer's
            keys and values of the prompts, [G, K, P, size].
        """
        rotary = self.model.model.rotary_emb
        angle = packing.position[:, None].float() * rotary.inv_freq.float()
        cos, sin = angle.cos(), angle.sin()
        scaling = rotary.attention_scaling
        if scaling != 1.0:
            cos, sin = cos * scaling, sin * scaling
        x = self.model.model.embed_tokens(packing.token)
        if x.dtype in (torch.float16, torch.bfloat16):
            x = x.float()
        plan = _AttentionPlan(packing, self.heads, self.key_heads, self.dtype)
        kept = []
        for layer in self.model.model.layers:
            if self.checkpointing and torch.is_grad_enabled():
                x, key, value = checkpoint(
                    self._layer, layer, x, cos, sin, plan, use_reentrant=False
                )
            else:
                x, key, value = self._layer(layer, x, cos, sin, plan)
            if keep_prompts:
                kept.append((key, value))
        return x, kept

    def _layer(
        self, layer: Any, x: Tensor, cos: Tensor, sin: Tensor, plan: _AttentionPlan
    ) -> tuple[Tensor, Tensor, Tensor]:
        attention, mlp, dtype = layer.self_attn, layer.mlp, self.dtype
        norm = layer.input_layernorm
        h = rms_norm(x, norm.weight, norm.variance_epsilon, dtype)
        query = self._rotated(attention, "q", h, self.heads, cos, sin, self.size**-0.5)
        key = self._rotated(attention, "k", h, self.key_heads, cos, sin, 1.0)
        value = _linear(attention.v_proj, h).view(-1, self.key_heads, self.size)
        out, key, value = self._attention(query, key, value, plan)
        x = x + _linear(attention.o_proj, out)

        norm = layer.post_attention_layernorm
        h = rms_norm(x, norm.weight, norm.variance_epsilon, dtype)
        gate, up = _linear(mlp.gate_proj, h), _linear(mlp.up_proj, h)
        h = swiglu(gate, up) if _is_silu(mlp.act_fn) else mlp.act_fn(gate) * up
        return x + _linear(mlp.down_proj, h), key, value

    def _rotated(
        self,
        attention: Any,
        name: str,
        h: Tensor,
        heads: int,
        cos: Tensor,
        sin: Tensor,
        scale: float,
    ) -> Tensor:
        """Queries or keys [N, H, size], normalised per head where the model does, and rotated."""
        x = _linear(getattr(attention, f"{name}_proj"), h).view(-1, heads, self.size)
        norm = getattr(attention, f"{name}_norm", None)
        if norm is not None:
            flat = rms_norm(x.reshape(-1, self.size), norm.weight, norm.variance_epsilon, _wide(x))
            x = flat.view(-1, heads, self.size)
        return rotate(x, cos, sin, scale, self.dtype)

    def _attention(
        self, query: Tensor, key: Tensor, value: Tensor, plan: _AttentionPlan
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Packed [N, H · size] output, and the prompts' keys and values [G, K, P, size]."""
        query_p, query_c = _Regroup.apply(query, plan.queries)
        key_p, key_c = _Regroup.apply(key, plan.keys)
        value_p, value_c = _Regroup.apply(value, plan.keys)
        fused = self.fused_attention
        if fused is None:
            scores = plan.rows * self.heads * plan.length * (plan.width + plan.length)
            fused = query.device.type != "cpu" or scores > MAX_SCORES
        shared_key, shared_value = key_p.squeeze(2), value_p.squeeze(2)
        function = _attend_fused if fused else attend
        out_p = function(query_p, key_p, value_p)
        if plan.length:
            out_c = function(query_c, key_c, value_c, shared_key, shared_value, plan.prompt_mask)
        else:
            out_c = query_c
        out = _Ungroup.apply(out_p, out_c, plan.queries)
        return out.view(out.shape[0], -1), shared_key, shared_value


class _AttentionPlan:
    """A packing's rectangles, spelled out per head; made once for all layers."""

    def __init__(self, packing: Packing, heads: int, key_heads: int, dtype: torch.dtype) -> None:
        repeats = heads // key_heads
        self.width = packing.prompts.shape[1]
        self.length = packing.completions.shape[2]
        self.rows = packing.completions.shape[0] * packing.completions.shape[1]
        self.queries = _Places(packing, key_heads, repeats)
        self.keys = _Places(packing, key_heads, None)
        self.prompt_mask = torch.zeros(
            packing.prompt_mask.shape, dtype=dtype, device=packing.token.device
        ).masked_fill_(~packing.prompt_mask, float("-inf"))


class _Places:
    """Places of (token, head) pairs: stream → rectangles, and back.

    The stream is [N, H]; rectangles are [G, K, C, R, T], for keys without R.
    """

    def __init__(self, packing: Packing, key_heads: int, repeats: int | None) -> None:
        heads = key_heads * (repeats or 1)
        device = packing.token.device
        self.tokens, self.heads = packing.token.shape[0], heads
        head = torch.arange(heads, device=device).view(1, key_heads, 1, -1, 1)
        self.shapes, self.forward, self.backward = [], [], []
        for place, inverse in (
            (packing.prompts[:, None], packing.prompt_inverse),
            (packing.completions, packing.completion_inverse),
        ):
            groups, rows, length = place.shape
            each = place[:, None, :, None] * heads + head  # [G, K, C, R, T]
            shape = (groups, key_heads, rows, repeats or 1, length)
            self.shapes.append(shape if repeats else (*shape[:3], length))
            self.forward.append(each.flatten())
            # Where in the rectangle a stream's (token, head) lies.
            row, column = inverse // max(length, 1), inverse % max(length, 1)
            group, member = row // rows, row % rows
            many = repeats or 1
            h = torch.arange(heads, device=device)
            index = (group[:, None] * key_heads + h // many) * rows + member[:, None]
            index = (index * many + h % many) * length + column[:, None]
            self.backward.append(index.flatten())

    def regroup(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        flat = stream.reshape(self.tokens * self.heads, -1)
        first, second = (
            flat.index_select(0, index).view(*shape, -1)
            if index.numel()
            else flat.new_zeros(*shape, flat.shape[-1])
            for index, shape in zip(self.forward, self.shapes, strict=True)
        )
        return first, second

    def ungroup(self, prompts: Tensor, completions: Tensor) -> Tensor:
        size = prompts.shape[-1]
        stream = prompts.new_empty(self.tokens * self.heads, size)
        start = 0
        for part, index in zip((prompts, completions), self.backward, strict=True):
            stop = start + index.numel()
            if index.numel():
                torch.index_select(part.reshape(-1, size), 0, index, out=stream[start:stop])
            start = stop
        stream[start:] = 0.0
        return stream.view(self.tokens, self.heads, size)


class _Regroup(torch.autograd.Function):
    """Stream to rectangles. Its transpose is `_Ungroup`: unused places carry no gradient."""

    @staticmethod
    def forward(ctx: Any, stream: Tensor, places: _Places) -> tuple[Tensor, Tensor]:
        ctx.places = places
        return places.regroup(stream)

    @staticmethod
    def backward(ctx: Any, prompts: Tensor, completions: Tensor) -> tuple[Tensor, None]:
        return ctx.places.ungroup(prompts, completions), None


class _Ungroup(torch.autograd.Function):
    """Rectangles to stream. Its transpose is `_Regroup`: the filler's output is read by nothing."""

    @staticmethod
    def forward(ctx: Any, prompts: Tensor, completions: Tensor, places: _Places) -> Tensor:
        ctx.places = places
        return places.ungroup(prompts, completions)

    @staticmethod
    def backward(ctx: Any, stream: Tensor) -> tuple[Tensor, Tensor, None]:
        return *ctx.places.regroup(stream), None


def _attend_fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    shared_key: Tensor | None = None,
    shared_value: Tensor | None = None,
    shared_mask: Tensor | None = None,
) -> Tensor:
    """`attend` by torch's fused kernel, which wants the shared keys repeated for every row."""
    groups, heads, rows, repeats, length, size = query.shape

    def by_row(x: Tensor) -> Tensor:  # [G, K, C, …] → [G · C, K, …]
        return x.transpose(1, 2).flatten(0, 1)

    mask = None
    if shared_key is not None and shared_value is not None and shared_mask is not None:
        shared_key, shared_value = (
            x[:, :, None].expand(-1, -1, rows, -1, -1) for x in (shared_key, shared_value)
        )
        key, value = torch.cat([shared_key, key], 3), torch.cat([shared_value, value], 3)
        causal = torch.ones(length, length, dtype=torch.bool, device=query.device).tril_()
        live = (shared_mask == 0)[:, None, None].expand(-1, rows, length, -1)
        mask = torch.cat([live, causal.expand(groups, rows, -1, -1)], -1).flatten(0, 1)[:, None]
    out = F.scaled_dot_product_attention(
        by_row(query).flatten(1, 2),
        by_row(key),
        by_row(value),
        attn_mask=mask,
        is_causal=mask is None,
        scale=1.0,
        enable_gqa=True,
    )
    out = out.view(groups, rows, heads, repeats, length, size)
    return out.transpose(1, 2)


def _linear(module: nn.Linear, x: Tensor) -> Tensor:
    """The layer, and its adapter, in the input's dtype, whatever its parameters are kept in."""
    bias = None if module.bias is None else module.bias.to(x.dtype)
    out, added = F.linear(x, module.weight.to(x.dtype), bias), low_rank(module, x)
    return out if added is None else out + added


def _is_silu(activation: Any) -> bool:
    return activation is F.silu or type(activation).__name__ in ("SiLU", "SiLUActivation")


def _wide(x: Tensor) -> torch.dtype:
    return torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
