"""A network of your own: `troop train munchausen --network munchausen.network:make_net`."""

from torch import nn


def make_net(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Map [B, *shape] to [B, outputs]; images arrive in [0, 1], channels first."""
    inputs = 1
    for size in shape:
        inputs *= size
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )
