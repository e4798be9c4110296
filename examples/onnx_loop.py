"""Play a policy without PyTorch and without staq: onnxruntime and NumPy are all it needs.

    model.export("cartpole.onnx", format="onnx")    or    staq condense runs/mine --onnx
    python onnx_loop.py cartpole.onnx

The environment is CartPole, written out here: yours takes its place.
"""

import json
import sys

import numpy as np
import onnxruntime

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
STEPS = 500


class CartPole:
    """Gymnasium's CartPole-v1: keep a pole upright by pushing its cart to the left (0) or to the right (1)."""

    def reset(self, rng: np.random.Generator) -> np.ndarray:
        self.state, self.steps = rng.uniform(-0.05, 0.05, 4), 0
        return self.state.astype(np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool]:
        _, x_dot, angle, angle_dot = self.state
        force, mass = FORCE if action else -FORCE, CART + POLE
        pushed = (force + POLE * HALF_LENGTH * angle_dot**2 * np.sin(angle)) / mass
        torque = GRAVITY * np.sin(angle) - np.cos(angle) * pushed
        turning = torque / (HALF_LENGTH * (4 / 3 - POLE * np.cos(angle) ** 2 / mass))
        moving = pushed - POLE * HALF_LENGTH * turning * np.cos(angle) / mass
        self.state = self.state + SECONDS * np.array([x_dot, moving, angle_dot, turning])
        self.steps += 1
        fallen = abs(self.state[0]) > 2.4 or abs(self.state[2]) > np.radians(12)
        return self.state.astype(np.float32), 1.0, bool(fallen) or self.steps == STEPS


def play(file: str, episodes: int = 10, greedy: bool = True, seed: int = 0) -> list[float]:
    """The returns of some episodes."""
    session = onnxruntime.InferenceSession(file)
    made_for = json.loads(session.get_modelmeta().custom_metadata_map["staq"])["environment"]
    if made_for != "CartPole-v1":
        raise ValueError(f"{file} is a policy for {made_for}, and this loop plays CartPole-v1.")
    env, rng, returns = CartPole(), np.random.default_rng(seed), []
    for _ in range(episodes):
        obs, total, ended = env.reset(rng), 0.0, False
        while not ended:
            _, probabilities, best = session.run(None, {"observation": obs[None]})
            action = best[0] if greedy else rng.choice(len(probabilities[0]), p=probabilities[0])
            obs, reward, ended = env.step(int(action))
            total += reward
        returns.append(total)
    return returns


if __name__ == "__main__":
    returns = play(sys.argv[1])
    print(f"{len(returns)} episodes, mean return {np.mean(returns):.1f}, worst {min(returns):.1f}")
