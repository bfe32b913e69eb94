"""GoogLeNet (Szegedy et al. 2015): its branches and heads are no chain of layers, so that it can be counted only."""

from .definition import Branches, Head, Network
from .networks import IMAGENET, OVERLAPPING, conv


def inception(ones: int, threes: tuple[int, int], fives: tuple[int, int], pooled: int) -> Branches:
    """An inception module: maps of 1 x 1; of 3 x 3 and of 5 x 5, each after fewer of 1 x 1; of 1 x 1 after a pool."""
    return Branches(
        (
            conv(ones, 1),
            [*conv(threes[0], 1), *conv(threes[1], 3, padding=1)],
            [*conv(fives[0], 1), *conv(fives[1], 5, padding=2)],
            [{"max_pool": {"size": 3, "stride": 1, "padding": 1}}, *conv(pooled, 1)],
        )
    )


HEAD = Head(
    (
        {"average_pool": {"size": 5, "stride": 3}},
        *conv(128, 1),
        {"dense": 1024},
        "relu",
        {"dropout": 0.7},
        {"dense": 1000},
    )
)

GOOGLENET = Network(
    "googlenet",
    "GoogLeNet (Szegedy et al. 2015) with both auxiliary heads, without response normalisation",
    [
        IMAGENET,
        *conv(64, 7, stride=2, padding=3),  # 112 x 112 x 64
        OVERLAPPING,
        *conv(64, 1),
        *conv(192, 3, padding=1),  # 56 x 56 x 192
        OVERLAPPING,
        inception(64, (96, 128), (16, 32), 32),  # 3a: 28 x 28 x 256
        inception(128, (128, 192), (32, 96), 64),
        OVERLAPPING,
        inception(192, (96, 208), (16, 48), 64),  # 4a: 14 x 14 x 512
        HEAD,
        inception(160, (112, 224), (24, 64), 64),
        inception(128, (128, 256), (24, 64), 64),
        inception(112, (144, 288), (32, 64), 64),  # 4d: 14 x 14 x 528
        HEAD,
        inception(256, (160, 320), (32, 128), 128),
        OVERLAPPING,
        inception(256, (160, 320), (32, 128), 128),  # 5a: 7 x 7 x 832
        inception(384, (192, 384), (48, 128), 128),
        {"average_pool": 7},
        {"dropout": 0.4},
        {"dense": 1000},
    ],
)
