"""A film of a policy at play, with the probabilities of its actions beside the game."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import imageio.v2 as imageio
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from staq.policies import StaQPolicy
from staq.rivals.player import Player
from staq.runs import make_env

PANEL_WIDTH, HEIGHT = 240, 320
ACTION_NAMES = {
    "CartPole-v1": ["left", "right"],
    "Acrobot-v1": ["torque -1", "torque 0", "torque +1"],
    "MountainCar-v0": ["left", "none", "right"],
    "LunarLander-v3": ["none", "left", "main", "right"],
}


def film(policy: StaQPolicy | Player, env_id: str, out: Path, episodes: int, greedy: bool, seed: int) -> list[float]:
    """Plays whole episodes into an MP4 or GIF (by the name's ending) and returns their returns."""
    if out.suffix not in (".mp4", ".gif"):
        raise ValueError(f"{out} must end in .mp4 or .gif.")
    env = make_env(env_id, render_mode="rgb_array")
    names = _action_names(env, env_id)
    fps = int(env.metadata.get("render_fps") or 30)
    options = {"fps": fps, "macro_block_size": 2} if out.suffix == ".mp4" else {"duration": 1000 / fps, "loop": 0}
    scores = []
    writer: Any = imageio.get_writer(out, **options)
    with writer, policy.seeded(seed):
        for episode in range(episodes):
            obs, _ = env.reset(seed=seed + episode)
            score, ended = 0.0, False
            while not ended:
                probabilities = policy.action_probabilities(obs)
                action, _ = policy.predict(obs, deterministic=greedy)
                writer.append_data(
                    _frame(np.asarray(env.render()), probabilities, names, int(action) - policy.first_action, score)
                )
                obs, reward, terminated, truncated, _ = env.step(int(action))
                score, ended = score + float(reward), terminated or truncated
            scores.append(score)
    env.close()
    return scores


def _frame(game: np.ndarray, probabilities: np.ndarray, names: list[str], action: int, score: float) -> np.ndarray:
    width = 2 * round(game.shape[1] * HEIGHT / game.shape[0] / 2)  # video codecs want even sides
    picture = Image.new("RGB", (width + PANEL_WIDTH, HEIGHT), "white")
    resampling = Image.Resampling.NEAREST if game.shape[0] <= HEIGHT else Image.Resampling.BILINEAR
    picture.paste(Image.fromarray(game).resize((width, HEIGHT), resampling), (0, 0))
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(size=14)
    draw.text((width + 12, 10), f"return {score:g}", fill="black", font=font)
    row = min(36, (HEIGHT - 40) // len(names))
    for i, (name, probability) in enumerate(zip(names, probabilities, strict=True)):
        top, left = 40 + i * row, width + 12
        draw.text((left, top), f"{name} {probability:.2f}", fill="black", font=font)
        bar = (left, top + 18, left + 1 + float(probability) * (PANEL_WIDTH - 26), top + row - 6)
        if row >= 30:
            draw.rectangle(bar, fill="#D55E00" if i == action else "#0072B2")
    return np.asarray(picture)


def _action_names(env: gymnasium.Env, env_id: str) -> list[str]:
    meanings = getattr(env.unwrapped, "get_action_meanings", None)
    if meanings is not None:
        return list(meanings())
    assert isinstance(env.action_space, gymnasium.spaces.Discrete)
    return ACTION_NAMES.get(env_id) or [f"action {i}" for i in range(int(env.action_space.n))]
