"""Cached decoding of a Llama-family model: one token for many rows at a time.

The weights are copied once, in the sampling dtype, with the matrices that read the same input
joined. Keys are cached transposed, [B, K, D, S], because the product with one query then reads
memory in order. The cache grows by blocks and rows can be dropped from it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.policies.adapters import weight
from zoo.policies.layout import Packing, TextRows, round_up
from zoo.policies.llama import LlamaForward
from zoo.policies.transformers_forward import left_pad

__all__ = ["LlamaDecoder"]

BLOCK = 32  # cache slots added at a time


class _Layer(NamedTuple):
    """One layer's weights; ``query_key_norm`` [H + K, D] holds the scale of the queries too."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    query_key_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class LlamaDecoder:
    """Samples' side of `LlamaForward`; holds a copy of the weights as they were when it was made.

    Parameters
    ----------
    forward : LlamaForward
        Reads the prompts, in the dtype it was made with.
    pad_id : int
        Fills the prompts' left.
    """

    def __init__(self, forward: LlamaForward, pad_id: int) -> None:
        self.forward, self.pad_id, self.dtype = forward, pad_id, forward.dtype
        model = forward.model
        self.heads, self.key_heads, self.size = forward.heads, forward.key_heads, forward.size
        self.eps = model.model.norm.variance_epsilon
        with torch.no_grad():
            self.layers = [self._copy(layer) for layer in model.model.layers]
            self.embedding = model.model.embed_tokens.weight.detach()
            self.norm = model.model.norm.weight.detach().float()
            self.head = model.lm_head.weight.detach().to(self.dtype)
        self.activation = model.model.layers[0].mlp.act_fn
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.mask = self.position = self.cos = self.sin = torch.empty(0)
        self.used = 0

    def _copy(self, layer: Any) -> _Layer:
        attention, mlp, scale = layer.self_attn, layer.mlp, self.size**-0.5

        def join(*modules: Any) -> tuple[Tensor, Tensor | None]:
            joined = torch.cat([weight(m) for m in modules])
            return joined, None if modules[0].bias is None else torch.cat([m.bias for m in modules])

        qkv, bias = join(attention.q_proj, attention.k_proj, attention.v_proj)
        gate_up, gate_up_bias = join(mlp.gate_proj, mlp.up_proj)
        norm = getattr(attention, "q_norm", None)
        if norm is None:
            # Scores want queries times 1/√D; without a norm the projection takes it in.
            queries = self.heads * self.size
            qkv[:queries] *= scale
            if bias is not None:
                bias[:queries] *= scale
        else:
            norm = torch.cat(
                [
                    (norm.weight.float() * scale).expand(self.heads, -1),
                    attention.k_norm.weight.float().expand(self.key_heads, -1),
                ]
            )

        def cast(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.detach().to(self.dtype)

        return _Layer(
            input_norm=layer.input_layernorm.weight.detach().float(),
            qkv=qkv.to(self.dtype),
            qkv_bias=cast(bias),
            query_key_norm=norm,
            out=weight(attention.o_proj).detach().to(self.dtype),
            out_bias=cast(attention.o_proj.bias),
            mlp_norm=layer.post_attention_layernorm.weight.detach().float(),
            gate_up=gate_up.to(self.dtype),
            gate_up_bias=cast(gate_up_bias),
            down=weight(mlp.down_proj).detach().to(self.dtype),
            down_bias=cast(mlp.down_proj.bias),
        )

    def start(self, prompts: list[list[int]], repeats: int, capacity: int) -> Tensor:
        """Read each prompt once; [n · repeats, V] float32 logits of what comes next.

        Parameters
        ----------
        prompts : list of list of int
            Token ids.
        repeats : int
            Rows per prompt; row i · repeats + j continues prompt i.
        capacity : int
            Tokens that may be appended at most.
        """
        device = self.head.device
        prompt_ids, length = left_pad(prompts, self.pad_id)
        prompt_ids, length = prompt_ids.to(device), length.to(device)
        count = len(prompts)
        one = torch.ones(count, dtype=torch.int64, device=device)
        rows = TextRows.of(
            {  # a completion of one token, whose logits are wanted and which isn't read
                "prompt_ids": prompt_ids,
                "prompt_length": length,
                "action": one[:, None],
                "completion_length": one,
            }
        )
        packing = Packing.of(rows)
        x, kept = self.forward.layers(packing, keep_prompts=True)
        x = x.index_select(0, packing.predict)
        logits = self._logits(x)

        # Packed prompts are right-padded and each different one is there once; the cache has them
        # left-padded, so that all rows write to one slot.
        width = prompt_ids.shape[1]
        place = packing.predict[:, None] - torch.arange(width - 1, -1, -1, device=device)
        live = torch.arange(width, device=device) >= (width - length)[:, None]
        inverse = torch.zeros_like(packing.token)
        stream = packing.prompts.flatten()[packing.prompt_inverse]
        inverse[stream] = packing.prompt_inverse
        source = inverse[place.clamp_min(0)].masked_fill(~live, 0)  # [n, width] into [G · P]
        slots = round_up(width + min(capacity, BLOCK), BLOCK)
        self.keys, self.values = [], []
        kept.reverse()
        while kept:
            key, value = kept.pop()  # [G, K, P, D]
            both = []
            for states in (key, value):
                flat = states.transpose(1, 2).flatten(0, 1)  # [G · P, K, D]
                both.append(flat[source].repeat_interleave(repeats, 0))  # [B, width, K, D]
            keys = both[0].new_zeros(count * repeats, self.key_heads, self.size, slots)
            keys[..., :width] = both[0].permute(0, 2, 3, 1)
            values = both[1].new_zeros(count * repeats, self.key_heads, slots, self.size)
            values[:, :, :width] = both[1].transpose(1, 2)
            self.keys.append(keys)
            self.values.append(values)
        self.mask = torch.full((count * repeats, slots), float("-inf"), device=device)
        self.mask[:, :width] = (
            torch.zeros_like(live, dtype=torch.float32)
            .masked_fill_(~live, float("-inf"))
            .repeat_interleave(repeats, 0)
        )
        self.used, self.position = width, length.repeat_interleave(repeats)

        rotary = self.forward.model.model.rotary_emb
        last = int(length.max()) + capacity + 1
        angle = torch.arange(last, device=device)[:, None].float() * rotary.inv_freq.float()
        self.cos = (angle.cos() * rotary.attention_scaling)[:, None]
        self.sin = (angle.sin() * rotary.attention_scaling)[:, None]
        return logits.repeat_interleave(repeats, 0)

    def step(self, token: Tensor) -> Tensor:
        """Append one token [B] to every row; [B, V] float32 logits of the next."""
        if self.used == self.mask.shape[1]:
            self._grow()
        slot, rows = self.used, len(token)
        self.mask[:, slot] = 0.0
        self.used += 1
        cos, sin = self.cos[self.position], self.sin[self.position]  # [B, 1, D / 2]
        self.position = self.position + 1
        mask = self.mask[:, None, None]
        x = F.embedding(token, self.embedding).float()
        split = self.heads + self.key_heads
        for layer, keys, values in zip(self.layers, self.keys, self.values, strict=True):
            h = F.rms_norm(x, x.shape[-1:], layer.input_norm, self.eps).to(self.dtype)
            qkv = F.linear(h, layer.qkv, layer.qkv_bias).view(rows, -1, self.size)
            turned = qkv[:, :split].float()
            if layer.query_key_norm is not None:
                turned = F.rms_norm(turned, (self.size,), None, self.eps)
                turned = turned.mul_(layer.query_key_norm)
            turned = _turn(turned, cos, sin)
            keys[..., slot] = turned[:, self.heads :]
            values[:, :, slot] = qkv[:, split:]
            query = turned[:, : self.heads].to(self.dtype)
            query = query.view(rows, self.key_heads, -1, self.size)
            scores = torch.matmul(query, keys).float().add_(mask)
            probs = torch.softmax(scores, -1).to(self.dtype)
            out = torch.matmul(probs, values).view(rows, -1)
            x = x + F.linear(out, layer.out, layer.out_bias)
            h = F.rms_norm(x, x.shape[-1:], layer.mlp_norm, self.eps).to(self.dtype)
            gate, up = F.linear(h, layer.gate_up, layer.gate_up_bias).chunk(2, -1)
            x = x + F.linear(self.activation(gate) * up, layer.down, layer.down_bias)
        return self._logits(x)

    def keep(self, index: Tensor) -> None:
        """Drop all rows but these."""
        # One by one, so that never two whole caches are alive at a time.
        for i in range(len(self.keys)):
            self.keys[i] = self.keys[i].index_select(0, index)
            self.values[i] = self.values[i].index_select(0, index)
        self.mask, self.position = self.mask[index], self.position[index]

    def _logits(self, x: Tensor) -> Tensor:
        h = F.rms_norm(x, x.shape[-1:], self.norm, self.eps).to(self.dtype)
        return F.linear(h, self.head).float()

    def _grow(self) -> None:
        for i in range(len(self.keys)):
            self.keys[i] = F.pad(self.keys[i], (0, BLOCK))
            self.values[i] = F.pad(self.values[i], (0, 0, 0, BLOCK))
        self.mask = F.pad(self.mask, (0, BLOCK), value=float("-inf"))


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
