"""Sampling ahead: a thread samples the next batches while the present one is learned from.

With ``staleness`` S the batch that is learned from in round n was sampled by the weights as they
were S rounds before, and never by older ones: at most S batches are asked for in advance, each from
a copy of the weights made when it was asked for. Its rows bear the ``version`` of that copy, so the
importance plugin (zoo/plugins/importance.py) tells the behaviour policy, which sampled, from the
proximal one, the trainer's own before the round's first update (decoupled objective: Hilton et al.
2022, arXiv:2110.00641; on language models Fu et al. 2025, AReaL, arXiv:2505.24298, §5.2).

One thread samples, one batch after the other, and only it moves the prompt stream and the random
generator: what is sampled depends on the seed and on no clock.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict

from zoo.core.protocols import Report

if TYPE_CHECKING:
    from zoo.rollouts.text import TextRollout

__all__ = ["AsynchronousRollout"]

_Collected = tuple[TensorDict, Report]


class AsynchronousRollout:
    """Hand out batches that were sampled ahead.

    Parameters
    ----------
    rollout : TextRollout
        What collects, evaluates and has all other attributes.
    staleness : int
        S ≥ 1, in rounds; each takes a copy of the trainable weights.
    """

    def __init__(self, rollout: TextRollout, staleness: int) -> None:
        self.rollout, self.staleness = rollout, staleness
        self._ahead: deque[Future[_Collected]] = deque()
        self._copies: list[Any] = []
        self._asked = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sampling-ahead")
        self._report = Report()

    def __getattr__(self, name: str) -> Any:
        """Return what the rollout within has: its environment, world, limits."""
        return getattr(self.__dict__["rollout"], name)

    def collect(self, policy: Any, budget: int | None = None) -> TensorDict:
        """Return the oldest batch that was asked for, and ask for others under present weights.

        The first batch is sampled here and now. ``budget`` counts the rounds that are left, this
        one included: nothing is sampled beyond them.
        """
        batch, self._report = self._oldest() if self._ahead else self._sample(policy)
        wanted = self.staleness if budget is None else min(self.staleness, budget - 1)
        while len(self._ahead) < wanted:
            self._ask(policy)
        age = (policy.version - batch["version"]).double()
        self._report.metrics |= {"rollout/age_mean": float(age.mean())}
        self._report.metrics |= {"rollout/age_max": float(age.max())}
        return batch

    def report(self) -> Report:
        """Figures, records and notices of the last batch that was handed out."""
        return self._report

    def evaluate(self, policy: Any, **options: Any) -> dict[str, float]:
        """Measure the policy, once the batches under way are done: engine and scorer are shared."""
        self._settled()
        return self.rollout.evaluate(policy, **options)

    def state_dict(self) -> dict[str, Any]:
        """Finish what was asked for and return it with the state that the rollout is in then."""
        ahead = self._settled()
        saved = [{"batch": b.to_dict(), "report": dataclasses.asdict(r)} for b, r in ahead]
        return {"rollout": self.rollout.state_dict(), "ahead": saved}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, bit for bit on the CPU."""
        self._drop()
        self.rollout.load_state_dict(state["rollout"])
        for saved in state["ahead"]:
            rows = len(saved["batch"]["group"])
            done: Future[_Collected] = Future()
            done.set_result((TensorDict(saved["batch"], [rows]), Report(**saved["report"])))
            self._ahead.append(done)

    def close(self) -> None:
        """End the thread, in the middle of a completion where the sampler can, and the rest."""
        stop = getattr(self.rollout.sampler, "stop", None)
        if stop is not None and any(not future.done() for future in self._ahead):
            stop.set()
        self._thread.shutdown(cancel_futures=True)
        self.rollout.close()

    # Parts of the above.

    def _sample(self, policy: Any) -> _Collected:
        batch = self.rollout.collect(policy)
        return batch, self.rollout.report()

    def _oldest(self) -> _Collected:
        """Wait for the batch that was asked for first; a Ctrl-C while waiting leaves it there."""
        try:
            found = self._ahead[0].result()
        except Exception:
            self._drop()
            raise
        self._ahead.popleft()
        return found

    def _ask(self, policy: Any) -> None:
        """Let the thread sample a batch by the weights as they are now."""
        slot = self._asked % self.staleness
        self._asked += 1
        if slot == len(self._copies):
            self._copies.append(_copied(policy))
        behaviour = self._copies[slot]  # of a batch that has been handed out
        _update(behaviour, policy)
        # Both are a thread's own in torch: a new one would take every core, and no autocast.
        threads, kind = torch.get_num_threads(), policy.device.type
        dtype, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)

        def sample() -> _Collected:
            torch.set_num_threads(threads)
            with torch.autocast(kind, dtype, enabled):
                return self._sample(behaviour)

        self._ahead.append(self._thread.submit(sample))

    def _settled(self) -> list[_Collected]:
        """Wait for everything that was asked for; what went wrong in it is raised here."""
        return [future.result() for future in self._ahead]

    def _drop(self) -> None:
        """Forget what was asked for; the one under way is waited for, and ends as it may."""
        for future in self._ahead:
            if not future.cancel():
                future.exception()
        self._ahead.clear()
        self._copies.clear()
        self._asked = 0


def _copied(policy: Any) -> Any:
    """Return a copy of a policy that shares the tokenizer and whatever is not trained."""
    shared = [policy.codec, *(p for p in policy.parameters() if not p.requires_grad)]
    twin = copy.deepcopy(policy, {id(part): part for part in shared})
    return twin.requires_grad_(False)


@torch.no_grad()
def _update(twin: Any, policy: Any) -> None:
    """Put the policy's present weights and version into its copy."""
    for mine, its in zip(twin.parameters(), policy.parameters(), strict=True):
        if mine is not its:
            mine.copy_(its)
    for mine, its in zip(twin.buffers(), policy.buffers(), strict=True):
        mine.copy_(its)
    twin.version = policy.version
