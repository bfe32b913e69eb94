"""A torch module as a job's model. Used by torch_digits.yaml; needs the extra: pip install 'dbelief[torch]'."""

from torch import nn

from dbelief.nn.torch_model import TorchModel


class Net(nn.Module):
    """Convolutions over the 8 x 8 pixels of a digit."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()
        )
        self.classes = nn.Linear(32 * 4 * 4, 10)

    def forward(self, pixels):
        """Scores of the ten classes, of pixels (m, 64)."""
        return self.classes(self.features(pixels.reshape(-1, 1, 8, 8)).flatten(1))


def model():
    """What the job file names."""
    return TorchModel(Net, nn.CrossEntropyLoss())
