"""Qwen3's decoder in plain torch, for training on one CPU thread, and the Muon optimizer.

The arithmetic and the parameter names are those of transformers' ``Qwen3ForCausalLM``; with
batched-matmul attention and a compiled step it trains about three times as fast there.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 1536
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN = 256, 4, 4, 2, 64, 768
ROPE_THETA, NORM_EPS = 10_000.0, 1e-6


class RMSNorm(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + NORM_EPS)
        return (x.float() * scale * self.weight).to(x.dtype)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)
        self.q_norm = RMSNorm(HEAD_DIM)
        self.k_norm = RMSNorm(HEAD_DIM)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        B, T, _ = x.shape
        groups = HEADS // KV_HEADS
        q = rotate(self.q_norm(self.q_proj(x).view(B, T, HEADS, HEAD_DIM)), cos, sin)
        k = rotate(self.k_norm(self.k_proj(x).view(B, T, KV_HEADS, HEAD_DIM)), cos, sin)
        v = self.v_proj(x).view(B, T, KV_HEADS, HEAD_DIM)
        # [B, kv, groups·T, D]: the queries that share a key head are one batched matmul
        q = q.view(B, T, KV_HEADS, groups, HEAD_DIM).permute(0, 2, 3, 1, 4)
        q = q.reshape(B * KV_HEADS, groups * T, HEAD_DIM)
        k = k.permute(0, 2, 3, 1).reshape(B * KV_HEADS, HEAD_DIM, T)
        v = v.permute(0, 2, 1, 3).reshape(B * KV_HEADS, T, HEAD_DIM)
        score = torch.bmm(q, k).view(B, KV_HEADS, groups, T, T).float() / math.sqrt(HEAD_DIM)
        share = (score + mask[:, None, None]).softmax(-1).to(v.dtype)
        out = torch.bmm(share.view(B * KV_HEADS, groups * T, T), v)
        out = out.view(B, KV_HEADS, groups, T, HEAD_DIM).permute(0, 3, 1, 2, 4)
        return self.o_proj(out.reshape(B, T, HEADS * HEAD_DIM))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(HIDDEN, FFN, bias=False)
        self.up_proj = nn.Linear(HIDDEN, FFN, bias=False)
        self.down_proj = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = Attention()
        self.mlp = FeedForward()
        self.input_layernorm = RMSNorm(HIDDEN)
        self.post_attention_layernorm = RMSNorm(HIDDEN)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Qwen3's decoder with tied embeddings. ``forward`` gives logits."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = RMSNorm(HIDDEN)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * LAYERS) if residual else 1))

    def forward(
        self, token: Tensor, position: Tensor, document: Tensor, at: Tensor | None = None
    ) -> Tensor:
        """Logits [N, V] at the flat places ``at`` [N] of [B, T], or at all: [B, T, V].

        ``token``, ``position`` (in its document) and ``document`` (its number) are [B, T].
        """
        T = token.shape[1]
        frequency = ROPE_THETA ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        angle = position[:, :, None, None].float() * frequency  # [B, T, 1, D/2]
        cos, sin = (torch.cat([f(angle)] * 2, -1) for f in (torch.cos, torch.sin))
        causal = torch.ones(T, T, dtype=torch.bool).tril()
        visible = causal & (document[:, :, None] == document[:, None, :])
        mask = torch.zeros(visible.shape).masked_fill(~visible, -1e9)  # [B, T, T]
        x = self.embed_tokens(token)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        if at is not None:
            x = x.flatten(0, 1)[at]
        return F.linear(self.norm(x), self.embed_tokens.weight)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding, halves layout. x: [B, T, heads, D]; cos, sin: [B, T, 1, D]."""
    first, second = x.chunk(2, -1)
    return (x * cos + torch.cat((-second, first), -1) * sin).to(x.dtype)


class Muon:
    """Muon (Jordan et al., 2024): Nesterov momentum, orthogonalised by five Newton-Schulz steps."""

    def __init__(
        self, parameters: list[nn.Parameter], momentum: float = 0.95, weight_decay: float = 0.02
    ):
        self.parameters = parameters
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.buffers = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for parameter, buffer in zip(self.parameters, self.buffers, strict=True):
            assert parameter.grad is not None
            buffer.lerp_(parameter.grad, 1 - self.momentum)
            update = orthogonalise(parameter.grad.lerp(buffer, self.momentum))
            scale = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
            parameter.mul_(1 - lr * self.weight_decay).add_(update, alpha=-lr * scale)


def orthogonalise(matrix: Tensor) -> Tensor:
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.bfloat16()
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.T if tall else x).float()
