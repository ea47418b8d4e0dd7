"""Log-probability and entropy of sampled tokens without ever holding all logits.

A vocabulary of 150,000 makes the logits of a batch the largest tensor of a training step by far.
Here they are made a chunk of positions at a time, reduced to three numbers per position, thrown
away, and made again in the backward pass. With z = (h Wᵀ + b) / T and p = softmax(z)::

    log p_a   = z_a − logsumexp(z)              ∂/∂z_j = 1[j = a] − p_j
    H         = − Σ_j p_j log p_j               ∂/∂z_j = − p_j (log p_j + H)
    KL(p‖r)   = Σ_j p_j (log p_j − log r_j)     ∂/∂z_j = p_j (log p_j − log r_j − KL)

The last head's logits are the only ones made: nothing here knows of prompts, padding or groups.

With C = min(chunk, N) the most that is allocated at one time, outputs and gradients included, is ::

    bytes = k · C · V + N · (D · s + 12) + V · D · (4 + c · s)

where k is 8 (two float32 numbers per logit), 12 with a reference; s is the size of the hidden
states' numbers; the last term is the gradient of ``weight``, and c is 1 where ``weight`` has
another dtype than the hidden states and a copy is needed (2 with such a reference), else 0. With
c > 0 and chunks shorter than about D, the product that is added to that gradient counts in place of
k · C · V: s · C · V + V · D · (s + 4).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["OutputHead", "TokenStatistics", "statistics_of_logits", "token_log_prob"]


class TokenStatistics(NamedTuple):
    """Per position, at the sampling temperature: natural log π(token), entropy in nats, exact KL.

    Each is [N] float32 (float64 for float64 inputs); ``kl`` is None without a reference.
    """

    log_prob: Tensor
    entropy: Tensor
    kl: Tensor | None


class OutputHead(NamedTuple):
    """What turns the last hidden states into logits: ``hidden [N, D]``, ``weight [V, D]``, bias."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None = None

    def log_softmax(self, rows: slice, temperature: float) -> Tensor:
        """[rows, V] log-probabilities in float32, multiplied out in the hidden states' dtype."""
        hidden = self.hidden[rows]
        logits = hidden @ self.weight.to(hidden.dtype).t()
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()
        if self.bias is not None:
            logits += self.bias
        return logits.div_(temperature).log_softmax(-1)


def token_log_prob(
    hidden: Tensor,
    weight: Tensor,
    token: Tensor,
    *,
    temperature: float = 1.0,
    bias: Tensor | None = None,
    reference: OutputHead | None = None,
    chunk: int = 1024,
) -> TokenStatistics:
    """Log-probability of ``token``, entropy and (with a reference) KL of each position.

    Parameters
    ----------
    hidden : Tensor
        [N, D] the last hidden state of each position, any float dtype; the product with ``weight``
        is taken in it, everything after in float32.
    weight : Tensor
        [V, D] output embedding.
    token : Tensor
        [N] int64, the token whose log-probability is wanted.
    temperature : float
        Logits are divided by it before anything else.
    bias : Tensor, optional
        [V] of the output layer.
    reference : OutputHead, optional
        Hidden states and output embedding of the reference policy at the same positions (constant:
        no gradient flows to it).
    chunk : int
        Positions whose logits exist at one time; see the module for the memory that takes.

    Returns
    -------
    TokenStatistics
        Differentiable with respect to ``hidden``, ``weight`` and ``bias``.
    """
    log_prob, entropy, kl = _TokenLogProb.apply(
        hidden, weight, bias, token, temperature, reference, chunk
    )
    return TokenStatistics(log_prob, entropy, kl if reference is not None else None)


def statistics_of_logits(
    logits: Tensor, token: Tensor, *, temperature: float = 1.0, reference: Tensor | None = None
) -> TokenStatistics:
    """Do the same from logits [N, V], for heads that are no plain matrix product.

    Plain autograd: all N · V logits live until the backward pass.
    """
    log_probs = (logits.float() / temperature).log_softmax(-1)
    probs = log_probs.exp()
    log_prob = log_probs.gather(-1, token[:, None]).squeeze(-1)
    entropy = -(probs * log_probs).sum(-1)
    kl = None
    if reference is not None:
        kl = (probs * (log_probs - (reference.float() / temperature).log_softmax(-1))).sum(-1)
    return TokenStatistics(log_prob, entropy, kl)


class _TokenLogProb(torch.autograd.Function):
    """The chunked form; see the module's docstring for the gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        token: Tensor,
        temperature: float,
        reference: OutputHead | None,
        chunk: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        n = hidden.shape[0]
        log_prob, entropy, kl = torch.zeros(3, n, dtype=dtype, device=hidden.device).unbind()
        head = OutputHead(hidden, weight.to(hidden.dtype), bias)
        if reference is not None:
            reference = reference._replace(weight=reference.weight.to(reference.hidden.dtype))
        for rows in _chunks(n, chunk):
            log_probs = head.log_softmax(rows, temperature)  # [rows, V]
            log_prob[rows] = log_probs.gather(-1, token[rows, None]).squeeze(-1)
            if reference is None:
                probs = log_probs.exp()
            else:
                ratio = reference.log_softmax(rows, temperature).neg_().add_(log_probs)
                probs = log_probs.exp()
                kl[rows] = ratio.mul_(probs).sum(-1)
                del ratio  # before the next chunk's, here and below
            entropy[rows] = probs.mul_(log_probs).sum(-1).neg_()
            del log_probs, probs
        ctx.save_for_backward(hidden, weight, bias, token, entropy, kl)
        ctx.temperature, ctx.reference, ctx.chunk = temperature, reference, chunk
        ctx.set_materialize_grads(False)
        return log_prob, entropy, kl

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, token, entropy, kl = ctx.saved_tensors
        grad_log_prob, grad_entropy, grad_kl = grads
        if ctx.reference is None:
            grad_kl = None
        head = OutputHead(hidden, weight.to(hidden.dtype), bias)
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        # Accumulated over the chunks, so not in half precision; autograd casts it back.
        grad_weight = torch.zeros_like(weight, dtype=kl.dtype) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias) if ctx.needs_input_grad[2] else None
        for rows in _chunks(hidden.shape[0], ctx.chunk):
            log_probs = head.log_softmax(rows, ctx.temperature)
            factor = None  # of p_j in ∂loss/∂z_j
            if grad_kl is not None:
                factor = ctx.reference.log_softmax(rows, ctx.temperature).neg_().add_(log_probs)
                factor.sub_(kl[rows, None]).mul_(grad_kl[rows, None])
            if grad_entropy is not None:
                bonus = (log_probs + entropy[rows, None]).mul_(-grad_entropy[rows, None])
                factor = bonus if factor is None else factor.add_(bonus)
                del bonus
            grad = log_probs.exp_()
            if grad_log_prob is not None:
                g = grad_log_prob[rows, None]
                grad = grad.mul_(-g) if factor is None else grad.mul_(factor.sub_(g))
                grad.scatter_add_(-1, token[rows, None], g)
            elif factor is not None:
                grad = grad.mul_(factor)
            else:
                grad.zero_()
            del log_probs, factor
            grad.div_(ctx.temperature)
            if grad_bias is not None:
                grad_bias += grad.sum(0)
            grad = grad.to(hidden.dtype)
            if grad_hidden is not None:
                torch.mm(grad, head.weight, out=grad_hidden[rows])
            if grad_weight is not None:
                if grad.dtype == grad_weight.dtype:
                    grad_weight.addmm_(grad.t(), hidden[rows])
                else:
                    product = grad.t() @ hidden[rows]
                    grad_weight += product
                    del product
            del grad
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


def _chunks(n: int, size: int) -> list[slice]:
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]
