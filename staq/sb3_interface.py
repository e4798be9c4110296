"""What users of stable-baselines3 expect of an algorithm beside ``learn``: asking its policy, files, environments.

Nothing here is part of the algorithm: see ``staq.loop``.
"""

from __future__ import annotations

import copy
import io
import pathlib
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import check_for_correct_spaces, get_device, get_system_info

from staq import registry
from staq.critics import Critics
from staq.envs.supported import supported_env
from staq.experience.replay import Replay
from staq.policies import StaQPolicy
from staq.storage import model_file, replay_file
from staq.storage.plain_data import DamagedFile
from staq.storage.policy_shapes import check_fits, critics_of

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
        return self.policy.logits(observation, action_masks)

    def action_probabilities(self, observation: np.ndarray, action_masks: np.ndarray | None = None) -> np.ndarray:
        """π(·|s) = softmax(ξ(s)), part after part. → [B, A], or [A] for a single observation"""
        return self.policy.action_probabilities(observation, action_masks)

    def q_values(self, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """q of the networks that are learning, [B, E, A], and of each frozen one, oldest first, [B, n, E, A]."""
        return self.policy.q_values(observation)

    def export(self, path: str | pathlib.Path, format: Literal["safetensors", "onnx"] | None = None) -> pathlib.Path:
        """Write the policy into the folder ``path`` as safetensors and JSON, for ``staq.load_policy``.

        :param format: "onnx" for one graph in the file ``path`` instead, for programs without PyTorch; by default if
            its name ends in .onnx
        """
        from staq.storage.export import export_model

        return export_model(self, path, format)

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

    @property
    def q_net(self) -> Critics:
        """The critics, by SB3's name."""
        return self.policy.q_net

    @property
    def q_net_target(self) -> Critics:
        """Their target networks, by SB3's name."""
        return self.policy.q_net_target

    def save_replay_buffer(self, path: str | pathlib.Path | io.BufferedIOBase) -> None:
        """Write the stored transitions, as data only."""
        self._check_replay()
        replay_file.write(path, self.replay)

    def _check_replay(self) -> None:
        if self.replay_buffer is None:
            raise ValueError(
                f"There is no replay under evaluation={self.evaluation!r}, whose experience is used up when an "
                "iteration ends: save() holds the policy, Checkpoints a training that goes on exactly."
            )

    def load_replay_buffer(
        self, path: str | pathlib.Path | io.BufferedIOBase, truncate_last_traj: bool = True, trust: bool = False
    ) -> None:
        """Put saved transitions into the replay; their logits are computed anew, since the policy may have moved on.

        :param trust: whether a pickled replay, as SB3 and older versions write it, may run the code that is in it
        """
        self._check_replay()
        replay_file.read_into(path, self.replay, trust)
        self.replay.recompute(self.policy.improvement.accumulated)

    def set_parameters(
        self,
        load_path_or_dict: Any,
        exact_match: bool = True,
        device: torch.device | str = "auto",
        trust: bool = False,
    ) -> None:
        """As in SB3. ``trust`` is for files: see ``load``."""
        if isinstance(load_path_or_dict, dict):
            super().set_parameters(load_path_or_dict, exact_match, device)
        else:
            given, before = model_file.read(load_path_or_dict, trust).parameters, copy.deepcopy(self.get_parameters())
            try:
                super().set_parameters(given, exact_match, device)
            except model_file.Damage as error:
                super().set_parameters(before)  # type: ignore[arg-type]  # all of a file, or nothing
                reason = " ".join(str(error).split())
                raise ValueError(f"{load_path_or_dict} does not fit this model: {reason}") from error
        self.experience.recompute(self.policy.improvement.accumulated)

    def save(
        self,
        path: str | pathlib.Path | io.BufferedIOBase,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
    ) -> None:
        """As in SB3, but as data: only what has no name, such as a lambda or a class of yours, is pickled."""
        left_out = {*self._excluded_save_params(), *(exclude or ())} - set(include or ()) | {"policy"}
        attributes = {name: value for name, value in vars(self).items() if name not in left_out}
        model_file.write(path, type(self).__name__, attributes, self.get_parameters())

    @classmethod
    def load(
        cls,
        path: str | pathlib.Path | io.BufferedIOBase,
        env: GymEnv | None = None,
        device: torch.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        trust: bool = False,
        **kwargs: Any,
    ) -> Self:
        """As in SB3, but only data is read unless the file is trusted.

        :param trust: whether what is pickled in the file may be loaded, which can run any code
        """
        if print_system_info:
            print("== CURRENT SYSTEM INFO ==")
            get_system_info()
        found = get_device(device)
        if device != "auto" and found.type != torch.device(device).type:
            warnings.warn(f"device={str(device)!r}: PyTorch finds no GPU; {path} is loaded on the CPU.", stacklevel=2)
        saved = model_file.read(path, trust, custom_objects, print_system_info)
        known = {registry.ALGORITHMS[name].class_name for name in registry.ours()}
        if saved.kind in known - {cls.__name__}:
            raise ValueError(f"{path} is a model of {saved.kind}, not of {cls.__name__}: use {saved.kind}.load.")
        data = saved.attributes
        if "policy_kwargs" in kwargs and kwargs["policy_kwargs"] != data.get("policy_kwargs"):
            raise ValueError(
                f"policy_kwargs={kwargs['policy_kwargs']} are not those that {path} was saved with, "
                f"{data.get('policy_kwargs')}: leave them out."
            )
        try:
            cls._check_saved(data, saved.parameters, trust)
        except model_file.Damage as error:
            raise DamagedFile(f"{path} holds no {cls.__name__} ({type(error).__name__}: {error})") from error
        if env is not None:
            env = cls._wrap_env(env, data.get("verbose", 0))
            check_for_correct_spaces(env, data["observation_space"], data["action_space"])
            data["n_envs"] = env.num_envs
            if force_reset:
                data["_last_obs"] = None
        made: Any = cls
        model: Self = made(
            data["policy_class"], env, evaluation=data["evaluation"], device=found, _init_setup_model=False
        )
        vars(model).update(data)
        vars(model).update(kwargs)
        try:
            model._setup_model()
            model._leave_out_targets(saved.parameters["policy.optimizer"], path)
            model.set_parameters(saved.parameters, exact_match=True, device=found)
        except (KeyError, TypeError, AttributeError, RuntimeError, MemoryError) as error:
            raise DamagedFile(f"{path} does not fit itself ({type(error).__name__}: {error})") from error
        model.policy.improvement.begin_iteration(model._step_size)
        # What the iteration that it was saved in had collected is not in the file: it begins again.
        model.steps_collected -= model._steps_in_iteration
        model._steps_in_iteration = 0
        return model

    @classmethod
    def _check_saved(cls, data: dict[str, Any], parameters: dict[str, Any], trust: bool) -> None:
        """What a file says of a model, before anything is made of it."""
        for name in data:
            of_class = getattr(cls, name, None)
            if name.startswith("__") or callable(of_class) or isinstance(of_class, property):
                raise ValueError(f"{name} is no attribute of a saved model")
        needed = {"policy_class", "observation_space", "action_space", "evaluation", "_step_size"}
        if not needed <= data.keys():
            raise ValueError(f"it lacks {', '.join(sorted(needed - data.keys()))}")
        if trust:
            return
        most = {"memory_size": 10**6, "buffer_size": 10**9, "batch_size": 10**9}
        for name, size in most.items():
            if data.get(name) is not None and not 1 <= data[name] <= size:
                raise ValueError(f"{name}={data[name]}: a file may ask for {size:,} at most")
        arguments: dict[str, Any] = {
            "observation_space": data["observation_space"],
            "action_space": data["action_space"],
            "n_critics": data["n_critics"],
            "n_atoms": data["n_atoms"],
            **registry.load_evaluation(data["evaluation"]).policy_defaults,
            **data["policy_kwargs"],
        }
        check_fits(data["policy_class"], arguments, critics_of(parameters["policy"]))

    def _leave_out_targets(self, optimizer: dict[str, Any], path: Any) -> None:
        """Of a saved optimiser that was made of ``policy.parameters()``, which hold more than the critics'."""
        critics, both = len(list(self.q_net.parameters())), len(list(self.policy.parameters()))
        for group in optimizer["param_groups"]:
            if critics < len(group["params"]) == both:
                del group["params"][critics:]
                warnings.warn(
                    f"The optimiser in {path} also holds the target networks, which it never trains: it is loaded "
                    "without them.",
                    stacklevel=3,
                )

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        of_actor = self.policy.improvement.optimizer
        return [self.policy.optimizer] if of_actor is None else [self.policy.optimizer, of_actor]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        names = ["policy", "policy.optimizer", "policy.improvement.optimizer"]
        return names[: 1 + len(self._optimizers())], []

    def _excluded_save_params(self) -> list[str]:
        made_anew = [
            "lr_schedule",
            "_generators",
            "_behaviour",
            "policy_evaluation",
            "experience",
            "phases",
            "_masks",
        ]
        return [*super()._excluded_save_params(), *made_anew]
