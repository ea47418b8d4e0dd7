"""The learner reduces once, moves only the named groups, and never steps on a bad gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from tensordict import TensorDict
from torch import nn

from zoo.core.algorithm import Algorithm
from zoo.core.learner import Learner, OptimizerKnobs
from zoo.core.protocols import Evaluation, Loss, Update
from zoo.errors import UserError


class LinearPolicy(nn.Module):
    """One weight for the policy and one for the critic; log_prob = w·x, value = v·x."""

    stepwise = False
    sampler_is_exact = True
    has_critic = True
    version = 0

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, -2.0]))
        self.v = nn.Parameter(torch.tensor([0.5, 0.5]))

    def evaluate(self, batch: TensorDict, reference: Any = None) -> Evaluation:
        x = batch["observation"]
        return Evaluation(x @ self.w, torch.ones(x.shape[:2]), x @ self.v)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        return {"policy": [self.w], "critic": [self.v]}

    def micro_batches(self, minibatch: TensorDict, size: int | None) -> list[TensorDict]:
        return [minibatch] if size is None else list(minibatch.split(size))


@dataclass(frozen=True)
class Knobs(OptimizerKnobs):
    groups: tuple[str, ...] = ("policy", "critic")
    scale: float = 1.0


class Squares(Algorithm):
    """Minimises the square of the log-probability, and of the value."""

    name = "squares"
    Knobs = Knobs

    def losses(self, batch: TensorDict, update: Update) -> Iterator[Loss]:
        out = self.evaluation(batch)
        terms = {"policy": self.knobs.scale * out.log_prob**2, "value": out.value**2}
        yield Loss("squares", terms, batch["mask"], self.knobs.groups)


def make_batch(lengths: list[int], steps: int, seed: int = 0) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(steps)[None] < torch.tensor(lengths)[:, None]
    x = torch.randn(len(lengths), steps, 2, generator=generator)
    return TensorDict({"observation": x, "mask": mask}, batch_size=[len(lengths)])


def gradients(knobs: Knobs, batch: TensorDict) -> dict[str, torch.Tensor]:
    """Run one update and return the gradients that the optimizer was given."""
    learner = Learner(Squares.bind(knobs, LinearPolicy()), [], knobs, max_length=10)
    seen: dict[str, torch.Tensor] = {}
    step = learner.optimizer.step

    def spy(*args: Any) -> Any:
        for name, parameter in learner.algorithm.policy.named_parameters():
            if parameter.grad is not None:
                seen[name] = parameter.grad.clone()
        return step(*args)

    learner.optimizer.step = spy  # type: ignore[method-assign]
    learner.update(batch)
    return seen


@pytest.mark.parametrize("reduction", ["token-mean", "sequence-mean", "constant"])
def test_golden_23_gradients_do_not_depend_on_the_micro_batch(reduction: str) -> None:
    batch = make_batch([10, 1, 7, 3, 10, 2], steps=10)
    whole = gradients(Knobs(reduction=reduction, max_grad_norm=0.0), batch)  # type: ignore[arg-type]
    for size in (1, 2, 4):
        knobs = Knobs(reduction=reduction, max_grad_norm=0.0, micro_batch_size=size)  # type: ignore[arg-type]
        parts = gradients(knobs, batch)
        for name, gradient in whole.items():
            torch.testing.assert_close(parts[name], gradient, atol=1e-6, rtol=1e-6)


def test_golden_23_ten_and_a_hundred_live_tokens_divide_by_110() -> None:
    batch = make_batch([10, 100], steps=100)
    knobs = Knobs(max_grad_norm=0.0, micro_batch_size=1)
    x, mask = batch["observation"], batch["mask"]
    w = torch.tensor([1.0, -2.0])
    expected = (2 * (x @ w)[..., None] * x)[mask].sum(0) / 110
    torch.testing.assert_close(gradients(knobs, batch)["w"], expected, atol=1e-6, rtol=1e-6)


def test_golden_23_a_policy_may_put_the_rows_in_another_order() -> None:
    class Sorting(LinearPolicy):
        def micro_batches(self, minibatch: TensorDict, size: int | None) -> list[TensorDict]:
            return [minibatch[minibatch["mask"].sum(1).argsort()]]

    batch = make_batch([10, 1, 7], steps=10)
    knobs = Knobs(reduction="sequence-mean", max_grad_norm=0.0)
    learner = Learner(Squares.bind(knobs, policy := Sorting()), [], knobs)
    learner.optimizer.clear = lambda: None  # type: ignore[method-assign]
    learner.update(batch)
    expected = gradients(knobs, batch)["w"]
    torch.testing.assert_close(policy.w.grad, expected, atol=1e-6, rtol=1e-6)


def _rank(rank: int, port: int, queue: Any) -> None:
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    batch = make_batch([10, 1, 7, 3, 10, 2], steps=10)
    own = batch[:1] if rank == 0 else batch[1:]
    for reduction in ("token-mean", "sequence-mean"):
        knobs = Knobs(reduction=reduction, max_grad_norm=0.0)  # type: ignore[arg-type]
        queue.put((rank, reduction, gradients(knobs, own)["w"].tolist()))
    torch.distributed.destroy_process_group()


def test_golden_23_gradients_do_not_depend_on_the_world_size() -> None:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = mp.get_context("spawn")
    queue = context.Queue()
    ranks = [context.Process(target=_rank, args=(r, port, queue)) for r in range(2)]
    for process in ranks:
        process.start()
    results = [queue.get(timeout=120) for _ in range(4)]
    for process in ranks:
        process.join()
    batch = make_batch([10, 1, 7, 3, 10, 2], steps=10)
    for _, reduction, gradient in results:
        whole = gradients(Knobs(reduction=reduction, max_grad_norm=0.0), batch)["w"]
        torch.testing.assert_close(torch.tensor(gradient), whole, atol=1e-6, rtol=1e-6)


def test_a_loss_moves_only_the_groups_it_names() -> None:
    batch = make_batch([3, 3], steps=3)
    assert set(gradients(Knobs(groups=("policy",)), batch)) == {"w"}
    assert set(gradients(Knobs(groups=("critic",)), batch)) == {"v"}


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_a_non_finite_gradient_is_skipped_and_counted(scale: float) -> None:
    knobs = Knobs(scale=scale)
    policy = LinearPolicy()
    learner = Learner(Squares.bind(knobs, policy), [], knobs)
    before = policy.w.detach().clone()
    learner.update(make_batch([3, 3], steps=3))
    assert learner.skipped == 1 and learner.steps == 0
    assert torch.equal(policy.w, before)


def test_a_gradient_of_zero_moves_nothing_even_with_momentum() -> None:
    knobs = Knobs(lr=0.1)
    policy = LinearPolicy()
    learner = Learner(Squares.bind(knobs, policy), [], knobs)
    learner.update(make_batch([3, 3], steps=3))
    moved = policy.w.detach().clone()
    nothing = make_batch([3, 3], steps=3)
    nothing["observation"].zero_()
    learner.update(nothing)
    assert torch.equal(policy.w, moved) and learner.steps == 1
    dead = make_batch([0, 0], steps=3)
    assert learner.update(dead) == {}


def test_clipping_bounds_the_norm_of_the_whole_update() -> None:
    batch = make_batch([3, 3], steps=3)
    clipped = gradients(Knobs(max_grad_norm=1e-3, micro_batch_size=1), batch)
    norm = torch.cat([g.flatten() for g in clipped.values()]).norm()
    assert float(norm) == pytest.approx(1e-3, rel=1e-3)


def test_learning_rates_follow_the_schedule_and_the_critics_own() -> None:
    knobs = Knobs(lr=0.1, critic_lr=0.4, lr_schedule="linear")
    learner = Learner(Squares.bind(knobs, LinearPolicy()), [], knobs)
    metrics = learner.update(make_batch([3], steps=3), progress=0.75)
    assert [g["lr"] for g in learner.optimizer.param_groups] == pytest.approx([0.025, 0.1])
    assert float(metrics["lr"]) == pytest.approx(0.025)


def test_the_optimizer_continues_from_its_state() -> None:
    knobs = Knobs(lr=0.1)
    batch = make_batch([3, 2], steps=3)
    one = LinearPolicy()
    learner = Learner(Squares.bind(knobs, one), [], knobs)
    learner.update(batch)
    other = LinearPolicy()
    other.load_state_dict(one.state_dict())
    resumed = Learner(Squares.bind(knobs, other), [], knobs)
    resumed.load_state_dict(learner.state_dict())
    learner.update(batch)
    resumed.update(batch)
    assert torch.equal(one.w, other.w) and resumed.steps == 2


def test_the_constant_reduction_needs_a_length_limit() -> None:
    knobs = Knobs(reduction="constant")
    with pytest.raises(UserError, match="use token-mean or sequence-mean"):
        Learner(Squares.bind(knobs, LinearPolicy()), [], knobs)


def test_control_tasks_have_no_tokens_to_count() -> None:
    knobs = Knobs(max_tokens_per_micro_batch=64)
    with pytest.raises(UserError, match="which control tasks don't have"):
        Learner(Squares.bind(knobs, LinearPolicy()), [], knobs)


def test_a_loss_with_a_mask_of_its_own_is_refused() -> None:
    class Masked(Squares):
        def losses(self, batch: TensorDict, update: Update) -> Iterator[Loss]:
            for loss in super().losses(batch, update):
                yield Loss(loss.name, loss.terms, torch.zeros_like(loss.mask), loss.groups)

    knobs = Knobs()
    learner = Learner(Masked.bind(knobs, LinearPolicy()), [], knobs)
    with pytest.raises(ValueError, match=r"differs from batch\['mask'\]"):
        learner.update(make_batch([2], steps=2))
