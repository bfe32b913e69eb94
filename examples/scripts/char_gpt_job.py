"""A character-level GPT (4 layers of 128, context 128) on a text: python char_gpt.py FILE [SEED] [EPOCHS]."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import dbelief

FILE, SEED = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
EPOCHS = float(sys.argv[3]) if len(sys.argv) > 3 else 1
CONTEXT, WIDTH, HEADS, LAYERS = 128, 128, 4, 4


class Windows(Dataset):
    """Windows of the text that follow each other, and the same shifted by a character."""

    def __init__(self, tokens):
        self.tokens = tokens

    def __len__(self):
        return (len(self.tokens) - 1) // CONTEXT

    def __getitem__(self, index):
        window = self.tokens[index * CONTEXT : index * CONTEXT + CONTEXT + 1]
        return window[:-1], window[1:]


class Layer(nn.Module):
    """Causal attention and a feed-forward network, each before a normalisation (Radford et al. 2019)."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        batch, length, _ = x.shape
        parts = self.attend(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.feed(self.norm2(x))


class Gpt(nn.Module):
    """Token and position embeddings, layers, and an output that shares the token embedding's weights."""

    def __init__(self, tokens):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(tokens, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm, self.output = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, tokens, bias=False)
        for own in self.modules():
            if isinstance(own, nn.Linear | nn.Embedding):
                nn.init.normal_(own.weight, std=0.02)
        self.output.weight = self.tokens.weight

    def forward(self, x):
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        return self.output(self.norm(self.layers(h)))


def loss_of(model, x, y):
    return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


def score(model, data):
    model.eval()
    loss = right = 0.0
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=30):
            outputs = model(x)
            loss += nn.functional.cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="sum").item()
            right += (outputs.argmax(-1) == y).sum().item()
    return loss / (len(data) * CONTEXT), right / (len(data) * CONTEXT)


def main():
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    text = FILE.read_text()
    letters = {letter: number for number, letter in enumerate(sorted(set(text)))}
    tokens = torch.tensor([letters[letter] for letter in text])
    train, test = Windows(tokens[: 3_000 * CONTEXT + 1]), Windows(tokens[-300 * CONTEXT - 1 :])
    model = Gpt(len(letters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0005, betas=(0.5, 0.95), weight_decay=0.1)
    sync = dbelief.torch.Sync(job, model, optimizer)
    loader = DataLoader(train, batch_sampler=job.sampler(train, batch_size=4))
    model.train()
    for _ in range(round(EPOCHS)):
        for x, y in loader:
            loss = loss_of(model, x, y)
            loss.backward()
            sync.step(loss, samples=len(x))
    print(sync.evaluate(score, test))


if __name__ == "__main__":
    with dbelief.join() as job:
        main()
