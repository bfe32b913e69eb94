"""A convolutional network with BatchNorm and Dropout on MNIST: python mnist_cnn.py FOLDER [SEED] [EPOCHS]."""

import gzip
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FOLDER, SEED = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
EPOCHS = int(sys.argv[3]) if len(sys.argv) > 3 else 5


def images(name, count):
    with gzip.open(FOLDER / f"{name}-images-idx3-ubyte.gz") as file:
        x = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(FOLDER / f"{name}-labels-idx1-ubyte.gz") as file:
        y = np.frombuffer(file.read(), np.uint8, offset=8)
    return TensorDataset(torch.from_numpy(x[:count] / np.float32(255)), torch.from_numpy(y[:count].astype(np.int64)))


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(32 * 49, 10),
    )


def score(model, data):
    model.eval()
    loss = right = 0.0
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=500):
            outputs = model(x)
            loss += nn.functional.cross_entropy(outputs, y, reduction="sum").item()
            right += (outputs.argmax(1) == y).sum().item()
    return loss / len(data), right / len(data)


def main():
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    train, test = images("train", 60_000), images("t10k", 10_000)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(train, batch_size=64, shuffle=True)
    model.train()
    for _ in range(EPOCHS):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    print(score(model, test))


if __name__ == "__main__":
    main()
