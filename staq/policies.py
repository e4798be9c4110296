"""StaQ's policy for stable-baselines3: two Q-networks that learn, and a stack of frozen ones that acts."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from stable_baselines3.common.utils import get_device
from torch import nn

from staq.actions import ActionCodec
from staq.actions.masks import FORBIDDEN, forbid, masks_given
from staq.critics import Critics
from staq.hyperparameters import Requirement, at_least, check, nearest
from staq.networks.architecture import Architecture
from staq.networks.chunks import chunk_size
from staq.networks.conv_mlp import ConvArch, ConvMlp, activation_named
from staq.networks.default_architecture import (
    check_pixels,
    default_conv_arch,
    default_net_arch,
    has_channels_last,
)
from staq.networks.layer_norm import Norm
from staq.networks.optimizer import optimizer_named
from staq.networks.stacked_module import over_extractor
from staq.policy_improvement.improvement import PolicyImprovement
from staq.storage import model_file
from staq.storage.plain_data import DamagedFile
from staq.storage.policy_shapes import check_fits, critics_of

WIDTHS = Requirement(
    lambda v: v is None or (isinstance(v, Sequence) and all(at_least(1).holds(width) for width in v)),
    "a list of whole numbers of at least 1, such as [256, 256]",
)

log = logging.getLogger("staq")
MakeImprovement = Callable[[Architecture, int], PolicyImprovement]


class StaQPolicy(BasePolicy):
    """Q-networks over vectors or images, and the policy that an improvement makes of them.

    :param net_arch: widths of the fully connected layers
    :param conv_arch: (filters, kernel size, stride) per convolution; none for vectors
    :param activation_fn: after every layer but the last; a class, or its name in ``torch.nn``
    :param features_extractor_class: an SB3 features extractor in place of the convolutions; one per network
    :param channels_last: whether images are height, width, channel; by default as SB3 hands them on
    :param norm: "layer" for layer normalisation before every activation (of an extractor's layers, those above it)
    :param optimizer_class: a class, or its name in ``torch.optim``
    :param n_critics: networks in the ensemble
    :param n_atoms: choices per dimension of continuous actions
    :param make_improvement: builds the policy improvement for an architecture and a number of critics
    """

    convolutional = False
    several_parts: bool | None = None
    """Whether it is for Dict observations, if it is for one kind only."""
    masked = False
    """Whether it was trained with action masks."""
    _warned = False
    _allowed: torch.Tensor | None = None
    """Masks of the observations that ``predict`` is asked for."""

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        lr_schedule: Schedule,
        make_improvement: MakeImprovement,
        n_critics: int = 2,
        n_atoms: int = 7,
        net_arch: Sequence[int] | None = None,
        conv_arch: ConvArch | None = None,
        activation_fn: type[nn.Module] | str = nn.ReLU,
        features_extractor_class: type[BaseFeaturesExtractor] | None = None,
        features_extractor_kwargs: dict[str, Any] | None = None,
        channels_last: bool | None = None,
        normalize_images: bool = True,
        norm: Norm = None,
        optimizer_class: type[torch.optim.Optimizer] | str = torch.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if isinstance(activation_fn, str):
            activation_fn = activation_named(activation_fn)
        if isinstance(optimizer_class, str):
            optimizer_class = optimizer_named(optimizer_class)
        check("net_arch", net_arch, WIDTHS)
        check("norm", norm, Requirement(lambda v: v in (None, "layer"), '"layer", or None for none'))
        super().__init__(
            observation_space,
            action_space,
            normalize_images=normalize_images,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
        )
        self._arguments = {
            "lr_schedule": self._dummy_schedule,  # a schedule may not pickle, and acting needs none
            "make_improvement": make_improvement,
            "n_critics": n_critics,
            "n_atoms": n_atoms,
            "net_arch": net_arch,
            "conv_arch": conv_arch,
            "activation_fn": activation_fn,
            "features_extractor_class": features_extractor_class,
            "features_extractor_kwargs": features_extractor_kwargs,
            "channels_last": channels_last,
            "norm": norm,
            "optimizer_class": optimizer_class,
            "optimizer_kwargs": optimizer_kwargs,
        }
        if self.several_parts not in (None, isinstance(observation_space, spaces.Dict)):
            wanted = "MlpPolicy or CnnPolicy" if self.several_parts else "MultiInputPolicy"
            raise ValueError(f"{type(self).__name__} is not for observations of {observation_space}: use {wanted}.")
        self.codec = ActionCodec(action_space, n_atoms)
        self.sampling = torch.Generator()
        self.n_critics = n_critics
        self.n_atoms = n_atoms
        self.architecture = self._make_architecture(
            net_arch, conv_arch, activation_fn, features_extractor_class, features_extractor_kwargs, channels_last, norm
        )
        self.q_net = Critics(self, n_critics)
        self.q_net_target = Critics(self, n_critics)
        self.q_net_target.requires_grad_(False)
        self.q_net_target.load_state_dict(self.q_net.state_dict())
        self.improvement = make_improvement(self.architecture, n_critics)
        fused = {"fused": True} if optimizer_class is torch.optim.Adam else {}  # one kernel for all weights
        arguments: dict[str, Any] = {"lr": lr_schedule(1)} | fused | self.optimizer_kwargs
        make_optimizer: Any = partial(optimizer_class, **arguments)
        self.optimizer = make_optimizer(self.q_net.parameters())
        if self.improvement.trains:
            self.improvement.optimizer = make_optimizer(self.improvement.parameters())

    def _make_architecture(
        self,
        net_arch: Sequence[int] | None,
        conv_arch: ConvArch | None,
        activation_fn: type[nn.Module],
        extractor_class: type[BaseFeaturesExtractor] | None,
        extractor_kwargs: dict[str, Any] | None,
        channels_last: bool | None,
        norm: Norm,
    ) -> Architecture:
        space, factors = self.observation_space, self.codec.factors
        if isinstance(space, spaces.Dict) and extractor_class is None and any(map(is_image_space, space.values())):
            extractor_class = CombinedExtractor
        features = (extractor_kwargs or {}).get("features_dim", 512)
        default = default_net_arch(space, self.convolutional, extractor_class, features)
        layers = default if net_arch is None else net_arch
        last = self.normalize_images, norm
        self.layers: dict[str, Any] = {"net_arch": list(layers), "activation_fn": activation_fn, "norm": norm}
        """What is above a features extractor, and that, for an export."""
        if extractor_class is not None:
            self.layers |= {"extractor": extractor_class, "extractor_kwargs": extractor_kwargs or {}}
            given = space, factors, extractor_class, extractor_kwargs or {}
            return over_extractor(*given, list(layers), activation_fn, *last)
        convolutions = default_conv_arch(space, self.convolutional) if conv_arch is None else conv_arch
        if self.convolutional and self.normalize_images:
            check_pixels(space)
        in_the_end = has_channels_last(space) if channels_last is None else channels_last
        return ConvMlp(space, factors, layers, activation_fn, convolutions, in_the_end, *last)

    def logits_of(self, obs: torch.Tensor) -> torch.Tensor:
        """ξ(s): the policy is their softmax. → float64 [B, A]"""
        return self.improvement.logits(self.improvement.accumulated(obs))

    def log_policy(self, accumulated: torch.Tensor, masks: torch.Tensor | None = None) -> torch.Tensor:
        """log π from accumulated logits. [B, A] → float64 [B, A]

        :param masks: which actions are allowed, if not all are [B, A]
        """
        return self.codec.factors.log_softmax(forbid(self.improvement.logits(accumulated), masks))

    @property
    def stored_space(self) -> spaces.Space:
        """Of observations as experience stores them: those of several parts are rows of bytes."""
        parts = self.architecture.parts
        return self.observation_space if parts is None else parts.stored_space

    def stored(self, obs: Any) -> Any:
        """Observations of environments as experience stores them."""
        return self.obs_to_tensor(obs)[0] if isinstance(obs, dict) else obs

    def obs_to_tensor(self, observation: np.ndarray | dict[str, np.ndarray]) -> tuple[torch.Tensor, bool]:
        """SB3's, with the parts of an observation side by side. → [B, ...], and whether there were several"""
        obs, vectorized = super().obs_to_tensor(observation)
        if self.architecture.parts is None:
            assert isinstance(obs, torch.Tensor)
            return obs, vectorized
        if not isinstance(obs, dict):
            raise ValueError(f"An observation of {self.observation_space} is a dict, not {type(observation).__name__}.")
        return self.architecture.parts.packed(obs), vectorized

    @torch.no_grad()
    def mean_q(self, obs: torch.Tensor) -> torch.Tensor:
        """q_k, the mean of the networks that learn. [n, ...] → [n, A]"""
        chunks = obs.split(chunk_size(self.device))
        return torch.cat([self.architecture.frozen_q_values(self.q_net.weights, c).mean(0).t() for c in chunks])

    def q_values(self, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """q of the networks that are learning, [B, E, A], and of each frozen one, oldest first, [B, n, E, A].

        For a single observation without the first axis.
        """
        frozen = self.improvement.frozen_q_values
        return (
            self._of_observation(lambda obs: self.q_net(obs).movedim(-1, 0), observation),
            self._of_observation(lambda obs: frozen(obs).movedim(-1, 0), observation),
        )

    @torch.no_grad()
    def _of_observation(self, function: Callable[[torch.Tensor], torch.Tensor], observation: np.ndarray) -> np.ndarray:
        _check_numbers(observation)
        obs, vectorized = self.obs_to_tensor(observation)
        assert isinstance(obs, torch.Tensor)
        values: np.ndarray = function(obs).cpu().numpy()
        return values if vectorized else values[0]

    def logits(self, observation: np.ndarray, action_masks: np.ndarray | None = None) -> np.ndarray:
        """ξ(s) of arrays, −∞ where a mask forbids an action. → [B, A], or [A] for a single observation"""
        masks = self._as_masks(action_masks)
        return self._of_observation(lambda obs: self._logits_within(masks, obs, -math.inf), observation)

    def action_probabilities(self, observation: np.ndarray, action_masks: np.ndarray | None = None) -> np.ndarray:
        """π(·|s) = softmax(ξ(s)), part after part. → [B, A], or [A] for a single observation"""
        masks, softmax = self._as_masks(action_masks), self.codec.factors.softmax
        return self._of_observation(lambda obs: softmax(self._logits_within(masks, obs)), observation)

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """SB3's, of allowed actions only if there are masks [B, A], or [A] for a single observation."""
        _check_numbers(observation)
        if self.masked and action_masks is None and not self._warned:
            self._warned = True
            log.warning(
                "The policy was trained with action masks and is asked without any: it may choose what is forbidden. "
                "Give it action_masks=…"
            )
        self._allowed = self._as_masks(action_masks)
        try:
            return super().predict(observation, state, episode_start, deterministic)
        finally:
            self._allowed = None

    def _as_masks(self, given: np.ndarray | None) -> torch.Tensor | None:
        return None if given is None else masks_given(given, self.codec.factors, self.device)

    def _logits_within(
        self, masks: torch.Tensor | None, obs: torch.Tensor, forbidden: float = FORBIDDEN
    ) -> torch.Tensor:
        """ξ(s) of what masks from outside allow. → [B, A]"""
        logits = self.logits_of(obs)
        if masks is not None and len(masks) not in (1, len(logits)):
            raise ValueError(
                f"action_masks of {len(masks)} rows for {len(logits)} observations: give one for each, or one for all."
            )
        return forbid(logits, masks, forbidden)

    def _predict(self, observation: PyTorchObs, deterministic: bool | np.ndarray = False) -> torch.Tensor:
        """SB3's; ``deterministic`` may also be a mask that says for which observations."""
        assert isinstance(observation, torch.Tensor)
        logits, factors = self._logits_within(self._allowed, observation), self.codec.factors
        indices = factors.likeliest(logits).cpu()
        sampled = torch.as_tensor(~np.broadcast_to(deterministic, len(indices)))
        if sampled.any():
            # Sampled where the generator lives, so that a seed gives the same actions on every device.
            indices[sampled] = factors.draw(factors.softmax(logits).cpu()[sampled], self.sampling)
        return torch.as_tensor(self.codec.actions(indices.numpy()), device=logits.device)

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Draws actions by ``seed`` meanwhile, and goes on afterwards as if nothing had been drawn."""
        before = self.sampling.get_state()
        self.sampling.manual_seed(seed)
        try:
            yield
        finally:
            self.sampling.set_state(before)

    def forward(self, obs: torch.Tensor, deterministic: bool = True) -> torch.Tensor:
        return self._predict(obs, deterministic)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | self._arguments

    def save(self, path: str) -> None:
        """As in SB3, but as data: only what has no name, such as a class of yours, is pickled."""
        model_file.write(path, type(self).__name__, self.saved_arguments(), {"policy": self.state_dict()})

    def saved_arguments(self) -> dict[str, Any]:
        """What a policy of the same shape is made with."""
        return {k: v for k, v in self._get_constructor_parameters().items() if k != "lr_schedule"}

    @classmethod
    def load(cls, path: str, device: torch.device | str = "auto", trust: bool = False) -> Self:
        """As in SB3, but only data is read unless the file is trusted.

        :param trust: whether what is pickled in the file may be loaded, which can run any code
        """
        saved = model_file.read(path, trust)
        try:
            if not trust:
                check_fits(cls, saved.attributes, critics_of(saved.parameters["policy"]))
            policy = cls(lr_schedule=cls._dummy_schedule, **saved.attributes)
            policy.load_state_dict(saved.parameters["policy"])
        except model_file.Damage as error:
            raise DamagedFile(f"{path} holds no {cls.__name__} ({type(error).__name__}: {error})") from error
        return policy.to(get_device(device))


class MlpPolicy(StaQPolicy):
    """For vectors: the paper's 256 × 2 network by default."""

    several_parts = False


class MultiInputPolicy(StaQPolicy):
    """For Dict observations: vectors side by side; with images, SB3's ``CombinedExtractor``. Above it 256 × 2."""

    several_parts = True


class CnnPolicy(StaQPolicy):
    """For images: the paper's Conv(16, 3, 3) + 128 on small boards by default, DQN's on Atari-size ones."""

    convolutional = True
    several_parts = False


def _check_numbers(observation: Any) -> None:
    """Raises where an observation holds NaN or infinity: of the policy's answer nothing would show it."""
    if isinstance(observation, tuple) and any(isinstance(part, dict) for part in observation):
        raise ValueError(
            "The observation is a tuple with a dictionary in it, as an environment's reset() returns: give its first "
            "part alone, as in obs, info = env.reset()."
        )
    for key, part in observation.items() if isinstance(observation, dict) else [("", observation)]:
        values = np.asarray(part)
        if np.issubdtype(values.dtype, np.floating) and not np.isfinite(values).all():
            of = f" {key!r}" if key else ""
            raise ValueError(f"The observation{of} is not finite ({values.tolist()}): a policy knows numbers only.")


def one_of_policies(names: Iterable[str]) -> Requirement:
    """A policy class, or the name of one."""

    def holds(policy: Any) -> bool:
        return issubclass(policy, StaQPolicy) if isinstance(policy, type) else policy in list(names)

    return Requirement(holds, f"{', '.join(map(repr, names))} or a subclass of StaQPolicy")


def check_arguments(policy_class: type[BasePolicy], given: Any) -> None:
    """Names a ``policy_kwargs`` that a policy does not know, before anything is made."""
    if given is None:
        return
    if not isinstance(given, dict):
        raise ValueError(f"policy_kwargs={given!r}: it must be a dictionary, such as {{'net_arch': [256, 256]}}.")
    parameters = inspect.signature(policy_class).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return  # of a user's own, who hands on what he likes
    for name in given:
        if name not in parameters:
            raise TypeError(
                f"policy_kwargs has {name!r}, which {policy_class.__name__} does not know."
                f"{nearest(str(name), parameters)}"
            )
