"""PQN (Gallici et al., 2025, arXiv:2407.04811) as a stable-baselines3 algorithm, by autograd.

Q-learning without replay and target networks: one rollout of many environments, λ-returns of max q, layer
normalisation. What StaQ's λ-returns are measured against.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import create_mlp
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import nn

from staq.experience.transitions import is_truncated


class PQNPolicy(DQNPolicy):
    """DQN's policy with layer normalisation in its fully connected layers, and RAdam."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        optimizer = partial(torch.optim.RAdam, foreach=True)  # the faster of PyTorch's two
        super().__init__(*arguments, **{"optimizer_class": optimizer, **more})

    def make_q_net(self) -> QNetwork:
        network = super().make_q_net()
        sizes = network.features_dim, int(network.action_space.n), network.net_arch
        layers = create_mlp(*sizes, network.activation_fn, post_linear_modules=[nn.LayerNorm])
        network.q_net = nn.Sequential(*layers).to(self.device)
        return network


@dataclass
class Steps:
    """A rollout. [T, N] each, observations with more axes"""

    obs: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    done: torch.Tensor
    """Whether an episode has ended, or was cut."""
    next_values: torch.Tensor
    """max q of what followed, 0 where nothing did."""


def greedy_lambda_returns(rollout: Steps, gamma: float, trace_decay: float) -> torch.Tensor:
    """G_t = r_t + γ [(1 − λ) max q(s_{t+1}) + λ G_{t+1}], from max q alone where an episode or the rollout ends."""
    returns = torch.empty_like(rollout.rewards)
    following = rollout.next_values[-1]
    for t in reversed(range(len(returns))):
        value = rollout.next_values[t]
        mixed = torch.where(rollout.done[t], value, (1 - trace_decay) * value + trace_decay * following)
        following = returns[t] = rollout.rewards[t] + gamma * mixed
    return returns


class PQN(BaseAlgorithm):
    """Parallelised Q-network.

    :param n_steps: of every environment in a rollout
    :param n_epochs: passes over a rollout
    :param trace_decay: λ of the returns
    :param exploration_fraction: of the training, over which ε falls

    All else as in ``stable_baselines3.DQN``.
    """

    policy_aliases: ClassVar[dict[str, Any]] = {"MlpPolicy": PQNPolicy}
    policy: PQNPolicy
    seconds_per_checkpoint = 20.0

    def __init__(
        self,
        policy: Any,
        env: Any,
        learning_rate: Any = 5e-4,
        n_steps: int = 32,
        n_epochs: int = 2,
        batch_size: int = 128,
        gamma: float = 0.99,
        trace_decay: float = 0.65,
        exploration_fraction: float = 0.1,
        exploration_initial_eps: float = 1.0,
        exploration_final_eps: float = 0.05,
        max_grad_norm: float = 10.0,
        policy_kwargs: dict[str, Any] | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        super().__init__(
            policy,
            env,
            learning_rate,
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            seed=seed,
            device=device,
            support_multi_env=True,
            supported_action_spaces=(spaces.Discrete,),
        )
        self.n_steps, self.n_epochs, self.batch_size = n_steps, n_epochs, batch_size
        self.gamma, self.trace_decay, self.max_grad_norm = gamma, trace_decay, max_grad_norm
        self.exploration_initial_eps, self.exploration_final_eps = exploration_initial_eps, exploration_final_eps
        self.exploration_fraction = exploration_fraction
        self.exploration_rate = exploration_initial_eps
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        kind: type = self.policy_class
        if not issubclass(kind, DQNPolicy):  # of a zip that another algorithm saved
            raise ValueError(f"policy={kind.__name__}: PQN needs a policy with a q_net, such as MlpPolicy.")
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        self.policy = self.policy_class(  # type: ignore[assignment]
            self.observation_space, self.action_space, self.lr_schedule, **self.policy_kwargs
        ).to(self.device)
        self.exploration_schedule = LinearSchedule(
            self.exploration_initial_eps, self.exploration_final_eps, self.exploration_fraction
        )

    def learn(
        self,
        total_timesteps: int,
        callback: Any = None,
        log_interval: int | None = 1,
        tb_log_name: str = "PQN",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
        )
        callback.on_training_start(locals(), globals())
        while self.num_timesteps < total_timesteps:
            rollout = self.collect(callback)
            if rollout is None:
                break
            self.train(rollout)
            if log_interval is not None and self.iteration % log_interval == 0:
                self.dump_logs()
        callback.on_training_end()
        return self

    def collect(self, callback: BaseCallback) -> Steps | None:
        """A rollout by ε-greedy actions; None if a callback asked to stop."""
        assert self.env is not None
        callback.on_rollout_start()
        self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
        self.exploration_rate = self.exploration_schedule(self._current_progress_remaining)
        columns: list[tuple[torch.Tensor, ...]] = []
        values: list[torch.Tensor] = []
        last: dict[tuple[int, int], Any] = {}  # observations of episodes that were cut
        for t in range(self.n_steps):
            obs, q = self._q_values(self._last_obs)
            values.append(q.max(1).values)
            actions = self._explored(q)
            new_obs, rewards, dones, infos = self.env.step(actions.cpu().numpy())
            self.num_timesteps += self.n_envs
            self._update_info_buffer(infos, dones)
            last |= {(t, int(i)): infos[i]["terminal_observation"] for i in np.flatnonzero(is_truncated(infos))}
            columns.append((obs, actions, *(torch.as_tensor(each, device=self.device) for each in (rewards, dones))))
            self._last_obs, self._last_episode_starts = new_obs, dones  # type: ignore[assignment]
            callback.update_locals(locals())
            if not callback.on_step():
                return None
        callback.on_rollout_end()
        seen, taken, received, done = (torch.stack(column) for column in zip(*columns, strict=True))
        next_values = torch.stack([*values[1:], self._q_values(self._last_obs)[1].max(1).values])
        next_values[done] = 0.0
        for place, its_obs in last.items():
            next_values[place] = self._q_values(its_obs[None])[1].max()
        return Steps(seen, taken, received.float(), done, next_values)

    @torch.no_grad()
    def _q_values(self, observation: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """→ the observations as tensors, and q [N, A]"""
        obs = self.policy.obs_to_tensor(observation)[0]
        return obs, self.policy.q_net(obs)  # type: ignore[return-value]

    def _explored(self, q: torch.Tensor) -> torch.Tensor:
        """ε-greedy, each environment by itself: SB3's DQN explores in all of them at once. [N, A] → [N]"""
        explores = torch.rand(len(q), device=q.device) < self.exploration_rate
        return torch.where(explores, torch.randint(q.shape[1], (len(q),), device=q.device), q.argmax(1))

    def train(self, rollout: Steps) -> None:
        """Passes over a rollout in minibatches."""
        self._update_learning_rate(self.policy.optimizer)
        returns = greedy_lambda_returns(rollout, self.gamma, self.trace_decay)
        obs, actions, targets = (each.flatten(0, 1) for each in (rollout.obs, rollout.actions, returns))
        losses = []
        for _ in range(self.n_epochs):
            for rows in torch.randperm(len(targets), device=self.device).split(self.batch_size):
                q = self.policy.q_net(obs[rows]).gather(1, actions[rows].unsqueeze(1)).squeeze(1)
                loss = 0.5 * (q - targets[rows]).square().mean()
                losses.append(loss.detach())
                self.policy.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.policy.q_net.parameters(), self.max_grad_norm)
                self.policy.optimizer.step()
        self._n_updates += len(losses)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", float(torch.stack(losses).mean()))
        self.logger.record("rollout/exploration_rate", self.exploration_rate)

    @property
    def iteration(self) -> int:
        """Rollouts so far."""
        return self.num_timesteps // (self.n_steps * self.n_envs)

    def dump_logs(self) -> None:
        """A line of the log, by SB3's tags."""
        self.logger.record("time/iterations", self.iteration, exclude="tensorboard")
        if self.ep_info_buffer:
            for key, tag in (("r", "ep_rew_mean"), ("l", "ep_len_mean")):
                self.logger.record(f"rollout/{tag}", float(np.mean([each[key] for each in self.ep_info_buffer])))
        self.logger.record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        self.logger.dump(step=self.num_timesteps)

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, Any]:
        """ε-greedy as in training, or greedy."""
        if deterministic:
            return self.policy.predict(observation, state, episode_start, deterministic)
        _, vectorized = self.policy.obs_to_tensor(observation)
        batch = observation if vectorized else np.asarray(observation)[None]
        actions = self._explored(self._q_values(batch)[1]).cpu().numpy()
        return (actions if vectorized else actions[0]), state

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "exploration_schedule"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "policy.optimizer"], []
