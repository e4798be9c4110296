"""Which network an observation space gets where nobody says otherwise."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, NatureCNN

from staq.networks.conv_mlp import ConvArch

SMALL_IMAGE: ConvArch = ((16, 3, 1),)
"""Conv(16, 3, 3) of the paper's Table 2: 16 filters of 3×3."""
LARGE_IMAGE: ConvArch = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""DQN's network for Atari-size images."""
LARGE = 36  # the smallest side that LARGE_IMAGE can take


def default_conv_arch(space: spaces.Space, convolutional: bool) -> ConvArch:
    """(filters, kernel size, stride) per convolution."""
    if not convolutional:
        return ()
    return SMALL_IMAGE if is_small(space) else LARGE_IMAGE


def default_net_arch(
    space: spaces.Space, convolutional: bool, extractor: type[BaseFeaturesExtractor] | None, features: int
) -> tuple[int, ...]:
    """Widths of the fully connected layers.

    :param features: width of the last one above a large image
    """
    if extractor is NatureCNN:  # which has its fully connected layer already, as SB3 sees it too
        return ()
    if not convolutional:
        return (256, 256)
    return (128,) if is_small(space) else (features,)  # as wide as SB3's NatureCNN


def is_small(space: spaces.Space) -> bool:
    # The channel axis is not always known to be the shortest one: two sides of at least LARGE make a large image.
    return sum(side >= LARGE for side in space.shape or ()) < 2


def has_channels_last(space: spaces.Space) -> bool:
    """SB3 hands images on with their channels first, and everything else as it is: large images are known by shape."""
    shape = space.shape or ()
    if len(shape) == 3 and shape[0] < LARGE <= min(shape[1:]):
        return False
    return not (is_image_space(space) and is_image_space_channels_first(space))  # type: ignore[arg-type]


class NotPixels(ValueError, AssertionError):
    """An observation that is no image. (In SB3 an assertion says so.)"""


def check_pixels(space: spaces.Space) -> None:
    """Raises where an image would have to be scaled and cannot be: only bytes are known to end at 255."""
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = space.low.min(), space.high.max()
        if low < -1 or high > 1:  # what is within has been scaled already
            raise NotPixels(
                f"CnnPolicy scales images of uint8 to [0, 1]; these are {space.dtype} from {low:g} to {high:g}. "
                'Hand on uint8, or take them as they are with policy_kwargs={"normalize_images": False}.'
            )
