"""Networks whose layers follow one another: what a job can train.

Response normalisation (AlexNet, GoogLeNet), which has no parameters and does not help (Simonyan and Zisserman 2015,
section 4.1), is left out. Images of ImageNet are 224 pixels wide.
"""

from .definition import Network, Words

IMAGENET: Words = {"image": {"height": 224, "width": 224, "channels": 3}}


def conv(maps: int, kernel: int, stride: int = 1, padding: int = 0) -> list[Words]:
    """A convolution with its ReLU."""
    options = {"maps": maps, "kernel": kernel, "stride": stride, "padding": padding}
    return [{"conv": options}, "relu"]


def dense(units: int) -> list[Words]:
    """A dense layer with ReLU and dropout."""
    return [{"dense": units}, "relu", {"dropout": 0.5}]


OVERLAPPING: Words = {"max_pool": {"size": 3, "stride": 2, "ceil_mode": True}}

LENET = Network(
    "lenet",
    "LeNet as Caffe has it (LeCun et al. 1998), for MNIST",
    [
        {"image": {"height": 28, "width": 28}},
        {"conv": {"maps": 20, "kernel": 5}},  # 24 x 24 x 20
        {"max_pool": 2},
        {"conv": {"maps": 50, "kernel": 5}},  # 8 x 8 x 50
        {"max_pool": 2},
        {"dense": 500},
        "relu",
        {"dense": 10},
    ],
)

ALEXNET = Network(
    "alexnet",
    "AlexNet (Krizhevsky et al. 2012), its convolutions not in groups, without response normalisation",
    [
        IMAGENET,
        *conv(96, 11, stride=4, padding=2),  # 55 x 55 x 96
        OVERLAPPING,
        *conv(256, 5, padding=2),  # 27 x 27 x 256
        OVERLAPPING,
        *conv(384, 3, padding=1),  # 13 x 13 x 384
        *conv(384, 3, padding=1),
        *conv(256, 3, padding=1),
        OVERLAPPING,  # 6 x 6 x 256
        *dense(4096),
        *dense(4096),
        {"dense": 1000},
    ],
)

NIN = Network(
    "nin",
    "Network in Network for ImageNet (Lin et al. 2014)",
    [
        IMAGENET,
        *conv(96, 11, stride=4),  # 54 x 54 x 96
        *conv(96, 1),
        *conv(96, 1),
        OVERLAPPING,
        *conv(256, 5, padding=2),  # 27 x 27 x 256
        *conv(256, 1),
        *conv(256, 1),
        OVERLAPPING,
        *conv(384, 3, padding=1),  # 13 x 13 x 384
        *conv(384, 1),
        *conv(384, 1),
        OVERLAPPING,
        {"dropout": 0.5},
        *conv(1024, 3, padding=1),  # 6 x 6 x 1024
        *conv(1024, 1),
        *conv(1000, 1),
        {"average_pool": 6},
    ],
)

VGG19 = Network(
    "vgg19",
    "VGG with 19 layers that have weights (Simonyan and Zisserman 2015, configuration E)",
    [
        IMAGENET,
        *(
            layer
            for maps, convolutions in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
            for layer in (*(conv(maps, 3, padding=1) * convolutions), {"max_pool": 2})
        ),
        *dense(4096),
        *dense(4096),
        {"dense": 1000},
    ],
)

SPEECH = Network(
    "speech",
    "The speech network of DistBelief (Dean et al. 2012, section 5): 11 frames of 40 log-energies, 8192 states",
    [
        {"image": {"height": 11, "width": 40}},
        *(layer for _ in range(4) for layer in ({"dense": 2560}, "sigmoid")),
        {"dense": 8192},
    ],
)
