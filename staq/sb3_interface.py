"""What users of stable-baselines3 expect of an algorithm beside ``learn``: asking its policy, files, environments.

Nothing here is part of the algorithm: see ``staq.loop``.
"""

from __future__ import annotations

import io
import pathlib
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.save_util import load_from_pkl
from stable_baselines3.common.type_aliases import GymEnv

from staq.envs.supported import supported_env
from staq.experience.replay import Replay
from staq.policies import StaQPolicy

if TYPE_CHECKING:
    from staq.policy_improvement.condensing import Condensed
    from staq.policy_improvement.mirror_descent import StepSize


class SB3Interface(OffPolicyAlgorithm):
    """A model with a stack for a policy, in stable-baselines3's terms."""

    policy: StaQPolicy
    experience: Any
    evaluation: str
    steps_collected: int
    _steps_in_iteration: int
    _step_size: StepSize
    _generators: dict[str, torch.Generator]

    # ------------------------------------------------------------------ using the policy

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """As in SB3, and with masks of allowed actions as in sb3-contrib: [B, A], or [A] for a single observation."""
        return self.policy.predict(observation, state, episode_start, deterministic, action_masks)

    def logits(self, observation: np.ndarray, action_masks: np.ndarray | None = None) -> np.ndarray:
        """ξ(s), the logits of the policy, −∞ of what is forbidden. → [B, A], or [A] for a single observation"""
        return self.policy.logits_of(observation, action_masks)

    def action_probabilities(self, observation: np.ndarray, action_masks: np.ndarray | None = None) -> np.ndarray:
        """π(·|s) = softmax(ξ(s)), part after part. → [B, A], or [A] for a single observation"""
        return self.policy.action_probabilities(observation, action_masks)

    def q_values(self, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """q of the networks that are learning, [B, E, A], and of each frozen one, oldest first, [B, n, E, A]."""
        return self.policy.q_values(observation)

    def export(self, path: str | pathlib.Path) -> pathlib.Path:
        """Write the policy into the folder ``path`` as safetensors and JSON, for ``staq.load_policy``."""
        from staq.storage.export import export_model

        return export_model(self, path)

    def condensed(
        self, n_networks: int | None = None, max_kl: float | None = None, observations: np.ndarray | None = None
    ) -> Condensed:
        """Condense the policy into few networks, for deployment: ``.policy`` plays, ``.export(path)`` writes it.

        :param n_networks: how many networks (ensembles of critics) it may have
        :param max_kl: or how far from the whole policy it may be
        :param observations: visited states to condense on; by default those that the model has learned from last
        """
        from staq.policy_improvement.condensing import condense

        if observations is not None:
            obs: Any = self.policy.obs_to_tensor(observations)[0]
        elif len(self.experience) > 0:
            obs = self.experience.states(self.policy, 1).obs
        else:
            raise ValueError(
                "The model has not visited any states since it was made or loaded: give it some, as observations."
            )
        return condense(self.policy, obs, n_networks, max_kl)

    # ------------------------------------------------------------------ stable-baselines3's files and environments

    @property  # type: ignore[override]
    def replay_buffer(self) -> Replay | None:
        """SB3's name for experience that is a replay."""
        experience = getattr(self, "experience", None)
        return experience if isinstance(experience, Replay) else None

    @replay_buffer.setter
    def replay_buffer(self, replay: Replay | None) -> None:
        if replay is not None:  # SB3 begins with none
            self.experience = replay

    @property
    def replay(self) -> Replay:
        assert self.replay_buffer is not None
        return self.replay_buffer

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        checked = supported_env(env)
        assert checked is not None
        super().set_env(checked, force_reset)

    def save_replay_buffer(self, path: str | pathlib.Path | io.BufferedIOBase) -> None:
        self._check_replay()
        super().save_replay_buffer(path)

    def _check_replay(self) -> None:
        if self.replay_buffer is None:
            raise ValueError(
                f"There is no replay under evaluation={self.evaluation!r}, whose experience is used up when an "
                "iteration ends: save() holds the policy, Checkpoints a training that goes on exactly."
            )

    def load_replay_buffer(self, path: str | pathlib.Path | io.BufferedIOBase, truncate_last_traj: bool = True) -> None:
        """As in SB3; the logits are computed anew, since the policy may have moved on since it was saved."""
        self._check_replay()
        replay = load_from_pkl(path, self.verbose)
        if not isinstance(replay, Replay):
            raise ValueError(
                f"{path} holds a {type(replay).__name__}, not a replay of {type(self).__name__}: save one with "
                "save_replay_buffer."
            )
        replay.adopt(self._generators["replay"], self.n_envs, self.policy.architecture)
        replay.recompute(self.policy.improvement.accumulated)
        self.replay_buffer = replay

    def set_parameters(
        self, load_path_or_dict: Any, exact_match: bool = True, device: torch.device | str = "auto"
    ) -> None:
        super().set_parameters(load_path_or_dict, exact_match, device)
        self.experience.recompute(self.policy.improvement.accumulated)

    @classmethod
    def load(cls, *arguments: Any, **keywords: Any) -> Self:
        """As in SB3."""
        model = super().load(*arguments, **keywords)
        model.policy.improvement.begin_iteration(model._step_size)
        # What the iteration that it was saved in had collected is not in the file: it begins again.
        model.steps_collected -= model._steps_in_iteration
        model._steps_in_iteration = 0
        return model

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        of_actor = self.policy.improvement.optimizer
        return [self.policy.optimizer] if of_actor is None else [self.policy.optimizer, of_actor]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        names = ["policy", "policy.optimizer", "policy.improvement.optimizer"]
        return names[: 1 + len(self._optimizers())], []

    def _excluded_save_params(self) -> list[str]:
        made_anew = ["_generators", "_behaviour", "policy_evaluation", "experience", "phases", "_masks", "_last_masks"]
        return [*super()._excluded_save_params(), *made_anew]
