"""Callbacks of a run in a terminal: its progress bar, and Ctrl-C."""

from __future__ import annotations

import signal
from types import FrameType
from typing import TYPE_CHECKING, Self

from stable_baselines3.common.callbacks import BaseCallback
from tqdm import tqdm

if TYPE_CHECKING:
    from staq.cli.runs import Config

PROGRESS_EVERY = 200
"""Environment steps between two looks at the progress bar."""


class Progress(BaseCallback):
    """One bar: steps, return, entropy, steps per second and time left."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.shown = 0
        self.bar = tqdm(disable=True)

    def _on_training_start(self) -> None:
        self.bar = tqdm(
            total=self.config.timesteps,
            initial=min(self.num_timesteps, self.config.timesteps),
            unit=" steps",
            unit_scale=True,
            dynamic_ncols=True,
            desc=self.config.env,
            smoothing=0.1,
        )

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps >= self.shown + PROGRESS_EVERY:
            self._show()

    def _on_training_end(self) -> None:
        self._show()
        self.close()

    def close(self) -> None:
        self.bar.close()

    def _show(self) -> None:
        self.shown = self.num_timesteps
        shown = {}
        if self.model.ep_info_buffer:
            episodes = [episode["r"] for episode in self.model.ep_info_buffer]
            shown["return"] = f"{sum(episodes) / len(episodes):.1f}"
        entropy = getattr(self.model, "policy_entropy", None)
        if entropy is not None:
            shown["entropy"] = f"{entropy:.2f}"
        self.bar.set_postfix(shown, refresh=False)
        self.bar.update(min(self.num_timesteps, self.config.timesteps) - self.bar.n)


class Interrupt(BaseCallback):
    """Turns Ctrl-C into a stop at the end of the iteration; a second one stops at once."""

    def __init__(self) -> None:
        super().__init__()
        self.requested = self.stopped = 0
        """The signal that asked for a stop, and by which learning was stopped."""

    def __enter__(self) -> Self:
        self.previous = {s: signal.signal(s, self._request) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt(number)
        self.requested = number
        tqdm.write("\nStopping after this iteration, with a checkpoint. Press Ctrl-C again to stop at once.")

    def _on_rollout_start(self) -> None:
        self.stopped = self.requested

    def _on_step(self) -> bool:
        # Only the first step of an iteration stops the run: the checkpoint of the one before is written by then.
        return not self.stopped
