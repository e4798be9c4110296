"""A video of a policy at play, with the probabilities of its actions beside the game."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import imageio.v2 as imageio
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from tqdm import tqdm

from staq.actions import ActionCodec
from staq.baselines.sb3_policy import SB3Policy
from staq.envs.make import make_env
from staq.envs.masks import masks_for
from staq.policies import StaQPolicy

PANEL_WIDTH, HEIGHT = 240, 320
MOST_ROWS = 28
"""Of actions, or of their parts: what still can be read."""
CHOSEN, NOT_CHOSEN = "#D55E00", "#0072B2"
ACTION_NAMES = {
    "CartPole-v1": ["left", "right"],
    "Acrobot-v1": ["torque -1", "torque 0", "torque +1"],
    "MountainCar-v0": ["left", "none", "right"],
    "LunarLander-v3": ["none", "left", "main", "right"],
}


class CannotBeSeen(ValueError):
    """An environment that has no picture of itself."""


def record_video(
    policy: StaQPolicy | SB3Policy,
    env_id: str,
    actions: str | None,
    out: Path,
    episodes: int,
    greedy: bool,
    seed: int,
) -> list[float]:
    """Plays whole episodes into an MP4 or GIF (by the name's ending) and returns their returns."""
    if out.suffix not in (".mp4", ".gif"):
        raise ValueError(f"{out} must end in .mp4 or .gif.")
    env = make_env(env_id, actions, render_mode="rgb_array")
    names = _action_names(env, env_id, policy.codec)
    fps = int(env.metadata.get("render_fps") or 30)
    options = {"fps": fps, "macro_block_size": 2} if out.suffix == ".mp4" else {"duration": 1000 / fps, "loop": 0}
    scores = []
    writer: Any = imageio.get_writer(out, **options)
    with writer, policy.seeded(seed), tqdm(unit=" frames", desc=out.name) as progress:
        for episode in range(episodes):
            obs, _ = env.reset(seed=seed + episode)
            score, ended = 0.0, False
            while not ended:
                masks = masks_for(policy, env)
                allowed: dict[str, Any] = {} if masks is None else {"action_masks": masks}
                action, _ = policy.predict(obs, deterministic=greedy, **allowed)
                picture, width = _canvas(_frame(env), score)
                if policy.codec is not None:
                    probabilities, chosen = policy.action_probabilities(obs, **allowed), policy.codec.indices(action)[0]
                    if len(names) == 1:
                        _bars(picture, width, probabilities, names[0], int(chosen))
                    else:
                        _strips(picture, width, np.split(probabilities, policy.codec.factors.first[1:]), names, chosen)
                writer.append_data(np.asarray(picture))
                progress.update()
                obs, reward, terminated, truncated, _ = env.step(action)
                score, ended = score + float(reward), terminated or truncated
            scores.append(score)
    env.close()
    return scores


def _frame(env: gymnasium.Env) -> np.ndarray:
    try:
        image: Any = env.render()
    except NotImplementedError:
        image = None
    except Exception as error:
        if not type(error).__module__.startswith("mujoco"):
            raise
        raise OSError(f"MuJoCo cannot render here ({error}): set MUJOCO_GL to egl, osmesa or glfw.") from error
    if np.ndim(image) != 3:
        raise CannotBeSeen(
            f"{env.unwrapped} shows no picture: under render_mode='rgb_array' its render() has to return one, "
            "[height, width, 3]."
        )
    return np.asarray(image)


def _canvas(game: np.ndarray, score: float) -> tuple[Image.Image, int]:
    """The game with an empty panel beside it, and where the panel begins."""
    width = 2 * round(game.shape[1] * HEIGHT / game.shape[0] / 2)  # video codecs want even sides
    picture = Image.new("RGB", (width + PANEL_WIDTH, HEIGHT), "white")
    resampling = Image.Resampling.NEAREST if game.shape[0] <= HEIGHT else Image.Resampling.BILINEAR
    picture.paste(Image.fromarray(game).resize((width, HEIGHT), resampling), (0, 0))
    ImageDraw.Draw(picture).text((width + 12, 10), f"return {score:g}", fill="black", font=_font(14))
    return picture, width + 12


def _bars(picture: Image.Image, left: int, probabilities: np.ndarray, names: list[str], chosen: int) -> None:
    """A bar to the right for every action."""
    shown = _shown(probabilities, chosen)
    draw, row = ImageDraw.Draw(picture), min(36, (HEIGHT - 40) // len(shown))
    below = row >= 30  # room for the bar below its name, or else beside it
    start, width = (left, PANEL_WIDTH - 26) if below else (left + 110, PANEL_WIDTH - 136)
    for place, i in enumerate(shown):
        top, probability = 40 + place * row, float(probabilities[i])
        draw.text((left, top), f"{names[i]} {probability:.2f}", fill="black", font=_font(min(14, row - 1)))
        upper, lower = (top + 18, top + row - 6) if below else (top + 1, top + row - 2)
        bar = (start, upper, start + 1 + probability * width, lower)
        draw.rectangle(bar, fill=CHOSEN if i == chosen else NOT_CHOSEN)


def _shown(probabilities: np.ndarray, chosen: int) -> list[int]:
    """As many actions as fit, the likeliest and the chosen one, in their order."""
    likeliest = np.argsort(-probabilities, kind="stable")[:MOST_ROWS].tolist()
    return sorted(likeliest if chosen in likeliest else [*likeliest[:-1], chosen])


def _strips(
    picture: Image.Image, left: int, parts: list[np.ndarray], names: list[list[str]], chosen: np.ndarray
) -> None:
    """A row for every part of an action: a bar upwards for each of its choices."""
    draw, row = ImageDraw.Draw(picture), min(48, (HEIGHT - 40) // min(len(parts), MOST_ROWS))
    rows = zip(parts[:MOST_ROWS], names, chosen, strict=False)
    for part, (probabilities, its_names, its_choice) in enumerate(rows):
        bottom, step = 36 + (part + 1) * row, (PANEL_WIDTH - 90) / len(probabilities)
        draw.text((left, bottom - 14), f"{part}: {its_names[its_choice]}", fill="black", font=_font(11))
        for i, probability in enumerate(probabilities):
            x, top = left + 66 + i * step, bottom - 1 - float(probability) * (row - 6)
            draw.rectangle((x, top, x + max(0, step - 2), bottom), fill=CHOSEN if i == its_choice else NOT_CHOSEN)


def _font(size: int) -> Any:
    return ImageFont.load_default(size=size)


def _action_names(env: gymnasium.Env, env_id: str, codec: ActionCodec | None) -> list[list[str]]:
    """Words for the choices of each part."""
    meanings = getattr(env, "get_action_meanings", None) or getattr(env.unwrapped, "get_action_meanings", None)
    known = list(meanings()) if meanings is not None else ACTION_NAMES.get(env_id, [])
    if codec is not None and codec.factors.sizes != (len(known),):
        return codec.labels()  # those words are for other actions
    return [known]
