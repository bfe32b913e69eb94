"""ResNet-18 of width 16 on a part of MNIST: python mnist_resnet.py FOLDER [SEED] [EPOCHS]."""

import gzip
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dbelief

FOLDER, SEED = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
EPOCHS = int(sys.argv[3]) if len(sys.argv) > 3 else 2


def images(name, count):
    with gzip.open(FOLDER / f"{name}-images-idx3-ubyte.gz") as file:
        x = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(FOLDER / f"{name}-labels-idx1-ubyte.gz") as file:
        y = np.frombuffer(file.read(), np.uint8, offset=8)
    return TensorDataset(torch.from_numpy(x[:count] / np.float32(255)), torch.from_numpy(y[:count].astype(np.int64)))


class Block(nn.Module):
    """Two convolutions and a shortcut (He et al. 2016, figure 2)."""

    def __init__(self, inside, outside, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.shortcut = nn.Sequential()
        if stride > 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def network(width=16):
    layers = [nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inside = width
    for stage in range(4):
        for block in range(2):
            outside = width * 2**stage
            layers.append(Block(inside, outside, 2 if stage and not block else 1))
            inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 10))


def score(model, data):
    model.eval()
    loss = right = 0.0
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=250):
            outputs = model(x)
            loss += nn.functional.cross_entropy(outputs, y, reduction="sum").item()
            right += (outputs.argmax(1) == y).sum().item()
    return loss / len(data), right / len(data)


def main():
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    train, test = images("train", 8_000), images("t10k", 5_000)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sync = dbelief.torch.Sync(job, model, optimizer)
    loader = DataLoader(train, batch_sampler=job.sampler(train, batch_size=32))
    model.train()
    for _ in range(EPOCHS):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            sync.step(loss, samples=len(x))
    print(sync.evaluate(score, test))


if __name__ == "__main__":
    with dbelief.join() as job:
        main()
