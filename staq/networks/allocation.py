"""Memory that is freed and soon needed again."""

from __future__ import annotations

import torch


def keep_freed_memory() -> None:
    """Lets the C library keep blocks of up to 31 MB that are freed and soon needed again.

    glibc starts by handing every large block back to the system, and clearing fresh pages for the activations of
    each forward pass costs more than computing them; freeing one large block raises the size up to which it does
    not. Elsewhere this does nothing.
    """
    torch.empty(31 << 20, dtype=torch.uint8)
