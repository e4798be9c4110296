"""Masks of allowed actions, as environments offer them: ``action_masks()`` as in sb3-contrib, or Gymnasium's info."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium.utils import RecordConstructorArgs
from stable_baselines3.common.vec_env import VecEnv

from staq.actions import Factors
from staq.experience.transitions import StepMasks, is_truncated

METHOD, INFO = "action_masks", "action_mask"
Masks = Literal["auto", "required", "off"]


class ActionMasks(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Offers an environment's masks both ways, whichever it has: by ``action_masks()`` and in every ``info``.

    The info is where a vectorised environment leaves the mask of an episode's last state.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        self._has_method = env.has_wrapper_attr(METHOD)
        self._mask: Any = None

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**options)
        return obs, self._noted(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, self._noted(info)

    def _noted(self, info: dict[str, Any]) -> dict[str, Any]:
        if self._has_method:
            return {**info, INFO: self.env.get_wrapper_attr(METHOD)()}
        if INFO not in info:
            raise ValueError(
                f"{self.env} offers no masks: it has no {METHOD}(), and its info holds {sorted(info)}, no "
                f"{INFO!r}. Give it the one or the other, or leave out {type(self).__name__}."
            )
        self._mask = info[INFO]
        return info

    def action_masks(self) -> Any:
        """Of the current state."""
        return self.env.get_wrapper_attr(METHOD)() if self._has_method else self._mask


class MaskReader:
    """Reads the masks of vectorised environments, and raises for one that no policy could follow.

    :param factors: of the environments' actions
    :param device: where the masks are wanted
    """

    now: torch.Tensor
    """Which actions are allowed in the states that the environments are in. bool [environments, A]"""

    def __init__(self, env: VecEnv, factors: Factors, device: torch.device) -> None:
        self.env, self.factors, self.device = env, factors, device
        self._warned = False

    def begin(self, step: int) -> None:
        """Read what is allowed in the states that a training begins in."""
        self.now = torch.as_tensor(self.read(step), device=self.device)

    def follow(self, dones: np.ndarray, infos: list[dict[str, Any]], step: int) -> StepMasks:
        """Read what is allowed after a step of the environments. → that, and what was allowed before it"""
        before, now = self.now, self.read(step)
        after = self.of_next_states(now, dones, infos, is_truncated(infos), step)
        self.now = torch.as_tensor(now, device=self.device)
        return StepMasks(before, torch.as_tensor(after, device=self.device))

    def read(self, step: int) -> np.ndarray:
        """Of the states that the environments are in. → bool [environments, ΣK]"""
        given = self.env.env_method(METHOD)
        return np.stack([self._checked(mask, i, step) for i, mask in enumerate(given)])

    def of_next_states(
        self, masks: np.ndarray, dones: np.ndarray, infos: list[dict[str, Any]], truncated: np.ndarray, step: int
    ) -> np.ndarray:
        """Of the states that a step led to: where an episode has ended, of its last state, or nothing if not known.

        :param masks: of the states that the environments are in now
        """
        found = masks.copy()
        for i in np.flatnonzero(dones).tolist():
            if INFO in infos[i]:
                found[i] = self._checked(infos[i][INFO], i, step) if truncated[i] else True
            else:
                found[i] = not truncated[i]  # nobody asks what follows an end
        if not self._warned and not found.any(-1).all():
            self._warned = True
            warnings.warn(
                f"The mask of a truncated episode's last state is not known (environment "
                f"{int(np.argmin(found.any(-1)))}, step {step}): such transitions are not learned from. Wrap each "
                f"environment in staq.ActionMasks, which leaves it in the info.",
                stacklevel=2,
            )
        return found

    def _checked(self, given: Any, i: int, step: int) -> np.ndarray:
        mask, n = np.asarray(given), self.factors.n_outputs
        where = f"Environment {i} returned an action mask at step {step}"
        if mask.dtype != bool and not (np.issubdtype(mask.dtype, np.number) and np.isin(mask, (0, 1)).all()):
            raise ValueError(f"{where} that is not made of True and False: {given!r}.")
        if mask.shape != (n,):
            raise ValueError(
                f"{where} of shape {mask.shape}, but there are {n} choices: one entry for each"
                f"{'' if self.factors.single else ', those of all parts side by side'}."
            )
        mask = mask.astype(bool)
        for part in np.split(mask, self.factors.first[1:]):
            if not part.any():
                raise ValueError(
                    f"{where} that allows nothing ({mask.astype(int).tolist()}): a policy needs an action. End the "
                    "episode before such a state, or allow an action that waits."
                )
        return mask


def reader_for(env: VecEnv, wanted: Masks, factors: Factors, device: torch.device) -> MaskReader | None:
    """How masks are read: None where there are none, or none are wanted."""
    if wanted == "off":
        return None
    if env.has_attr(METHOD):
        return MaskReader(env, factors, device)
    each = getattr(env.unwrapped, "envs", [])
    having = [i for i, e in enumerate(each) if e.has_wrapper_attr(METHOD)]
    if having:
        without = next(i for i in range(len(each)) if i not in having)
        raise ValueError(
            f"Environment {having[0]} offers {METHOD}() and environment {without} does not: masks are used in all of "
            "them or in none. Give it to all, or say masks='off'."
        )
    hiding = next((i for i, e in enumerate(each) if _is_hidden(e)), None)
    if hiding is not None:
        raise ValueError(
            f"Environment {hiding}, {each[hiding]}, has {METHOD}() under a wrapper that hides it: make the wrapper a "
            "gymnasium.Wrapper, give it the method too, or say masks='off'."
        )
    in_info = any(INFO in info for info in getattr(env.unwrapped, "reset_infos", []))
    if wanted == "required":
        raise ValueError(
            f"masks='required', but the environments have no {METHOD}(): "
            + (f"wrap each in staq.ActionMasks, which takes them from info[{INFO!r}]." if in_info else "give them one.")
        )
    if in_info:
        warnings.warn(
            f"The environments leave an {INFO!r} in their info, which is not used: wrap each in staq.ActionMasks, or "
            "say masks='off'.",
            stacklevel=2,
        )
    return None


def masks_for(policy: Any, env: gymnasium.Env[Any, Any] | VecEnv) -> np.ndarray | None:
    """What is allowed where an environment is, or several are, for a policy that was trained with masks."""
    if not getattr(policy, "masked", False):
        return None
    if isinstance(env, VecEnv):
        return np.stack(env.env_method(METHOD))
    return np.asarray(env.get_wrapper_attr(METHOD)())


def offers_masks(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether an environment says what is allowed, one way or the other. It is reset."""
    return env.has_wrapper_attr(METHOD) or INFO in env.reset()[1]


def _is_hidden(env: Any) -> bool:
    """Whether a method that a chain of wrappers does not offer is somewhere below."""
    while env is not None:
        if hasattr(env, METHOD):
            return True
        env = getattr(env, "env", None)
    return False
