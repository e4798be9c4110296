"""The paper's policy evaluation: regression on replayed transitions, towards targets of networks that lag behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from staq.actions import Factors
from staq.actions.masks import are_complete
from staq.experience.replay import Replay
from staq.experience.transitions import at
from staq.hyperparameters import Group, Shared, at_least, one_of, setting
from staq.networks.chunks import chunk_size
from staq.networks.gradients import backpropagation, differentiate
from staq.policy_evaluation.evaluation import Evaluated, PolicyEvaluation, known_only, taken_actions
from staq.policy_evaluation.soft_bellman import (
    ensemble_value,
    half_mse,
    soft_target,
    soft_value,
    soft_value_of_sample,
)
from staq.policy_improvement.mirror_descent import StepSize


class ReplayRegression(PolicyEvaluation):
    """Gradient steps on replayed transitions towards the soft Bellman target under π_k (Eq. 13)."""

    @dataclass(frozen=True)
    class Settings(Group):
        """What is replayed, and what it is regressed on."""

        buffer_size: int = setting(50_000, "transitions in the replay", at_least(1))
        target_action: Literal["expected", "sampled"] = setting(
            "expected",
            'the next action in the target: "expected" over the policy, or one "sampled" per draw',
            one_of("expected", "sampled"),
        )
        target_reduce: Literal["mean", "min"] = setting(
            "mean", 'the ensemble\'s value in the target: "mean" or "min"', one_of("mean", "min")
        )
        gradient_steps: int = setting(
            -1,
            "per iteration; -1 is as many as environment steps",
            at_least(-1, words="a whole number of at least 0, or -1 for one per environment step"),
        )
        target_update_interval: int = setting(
            200, "gradient steps between hard copies into the target networks", at_least(1)
        )

    @classmethod
    def defaults_with(cls, n_envs: int, given: Mapping[str, Any]) -> dict[str, Any]:
        """Batches that are no larger than a small replay."""
        usual = {"batch_size": Shared.batch_size, **cls.defaults}
        size = given.get("buffer_size")
        return usual | {"batch_size": min(usual["batch_size"], size)} if isinstance(size, int) else usual

    def make_experience(self, shared: Shared, settings: Settings) -> Replay:
        if settings.buffer_size < self.n_envs:
            raise ValueError(
                f"buffer_size={settings.buffer_size} is too small for a step of {self.n_envs} environments: raise the "
                "one or lower the other."
            )
        if settings.buffer_size < shared.batch_size:
            raise ValueError(
                f"buffer_size={settings.buffer_size} is less than batch_size={shared.batch_size}: raise the one or "
                "lower the other."
            )
        policy = self.policy
        return Replay(
            settings.buffer_size,
            policy.stored_space,
            policy.action_space,
            policy.architecture,
            self.generators["replay"],
            self.n_envs,
        )

    def evaluate(self, experience: Replay, shared: Shared, settings: Settings, step_size: StepSize) -> Evaluated:
        """Between two hard copies all targets are known at once, each distinct transition's computed once."""
        policy, replay = self.policy, experience
        steps = shared.policy_update_interval if settings.gradient_steps < 0 else settings.gradient_steps
        critics, loss_of = backpropagation(policy.q_net, shared.batch_size), partial(self.loss, settings)
        logged, n_windows = torch.zeros(2, device=policy.device), 0
        for start in range(0, steps, settings.target_update_interval):
            with self.phases("targets"):
                policy.q_net_target.load_state_dict(policy.q_net.state_dict())
                batches = replay.draw(min(settings.target_update_interval, steps - start), shared.batch_size)
                targets = self.targets(replay, batches, shared, settings, step_size)
                taken = taken_actions(replay.actions[batches], self.factors)
                targets, taken = known_only(targets, taken, known_targets(replay, batches, self.factors))
            with self.phases("gradient"):
                for rows, actions, target in zip(batches, taken, targets, strict=True):
                    outputs = critics.forward(replay.observations.index_select(0, rows))  # [E, A, B]
                    q = (outputs * actions).sum(1)  # of several parts it is the sum [E, B]
                    loss, error = differentiate(loss_of, q, target)
                    critics.backward(error.unsqueeze(1) * actions)
                    policy.optimizer.step()
                # Of the window's last batch, and summed on the device: nothing is read back between gradients.
                logged += torch.stack([loss, q.abs().mean()])
                n_windows += 1
        loss_sum, abs_q_sum = logged.tolist()
        return Evaluated(steps, loss_sum / max(n_windows, 1), abs_q_sum / max(n_windows, 1))

    def loss(self, settings: Any, q: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Eq. 13, the loss that trains, of the actions taken; override it for another one. [E, B], [B] → scalar"""
        return half_mse(q, target)

    @torch.no_grad()
    def targets(
        self, replay: Replay, batches: torch.Tensor, shared: Shared, settings: Settings, step_size: StepSize
    ) -> torch.Tensor:
        """Soft Bellman targets of drawn transitions. [steps, B] → [steps, B]"""
        rows, draw = batches.unique(return_inverse=True)
        # A minimum over the parts' q would count every difference in how members divide a sum as disagreement:
        # there each member first says what the next state is worth.
        reduces_values = settings.target_reduce == "min" and not self.factors.single
        q = self._next_q(replay, rows, None if reduces_values else settings.target_reduce)
        log_pi = self.policy.log_policy(replay.accumulated.values[rows], at(replay.next_masks, rows)).float()
        if settings.target_action == "expected":
            value = soft_value(q, log_pi, step_size.entropy_weight)
            value = (ensemble_value(value, "min") if reduces_values else value)[draw]
        else:
            each = draw.flatten()
            of_sample = partial(
                soft_value_of_sample, entropy_weight=step_size.entropy_weight, generator=self.generators["targets"]
            )
            value = self.factors.total(of_sample, q[..., each, :], log_pi[each])
            value = (ensemble_value(value, "min") if reduces_values else value).view_as(draw)
        rewards, terminated = replay.rewards[batches], replay.terminated[batches]
        return soft_target(rewards, terminated, value, shared.gamma, shared.reward_scale)

    def _next_q(self, replay: Replay, rows: torch.Tensor, reduce: Literal["mean", "min"] | None) -> torch.Tensor:
        """The target networks' q for the next states of replayed transitions. [n] → [n, A], or of each [E, n, A]"""
        size = chunk_size(self.policy.device)
        networks, found = backpropagation(self.policy.q_net_target, size), []
        for chunk in rows.split(size):
            # A chunk that is not full is filled up with any rows, whose q is not used.
            full = torch.nn.functional.pad(chunk, (0, size - len(chunk)))
            q = networks.forward(replay.next_observations.index_select(0, full))[..., : len(chunk)].mT  # [E, n, A]
            found.append(q.clone() if reduce is None else ensemble_value(q, reduce))
        return torch.cat(found, dim=-2)


def known_targets(replay: Replay, batches: torch.Tensor, factors: Factors) -> torch.Tensor | None:
    """Whether it is known what is allowed in the next states of transitions, if not everything is. [...] → [...]"""
    return None if replay.next_masks is None else are_complete(replay.next_masks[batches], factors)
