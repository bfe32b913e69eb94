"""PyTorch scripts as replicas of a job: `Sync` in place of `optimizer.step()` and `optimizer.zero_grad()`.

    with dbelief.join() as job:
        sync = dbelief.torch.Sync(job, model, optimizer)
        loader = DataLoader(dataset, batch_sampler=job.sampler(dataset, batch_size=64), num_workers=2)
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            sync.step(loss, samples=len(x))
        sync.evaluate(score, validation)

What travels is decided by the job's strategy. With a rule at the shards (downpour, async-sgd, async-msgd, sync-sgd in
the form shards) gradients travel, and the shards make the optimiser's step. With downpour's rule `add`, elastic
averaging and DiLoCo differences or weights travel, and the script calls `optimizer.step()` itself, by as many
optimisers as it has:

        sync = dbelief.torch.Sync(job, model)
        ...
            optimizer.step()
            sync.step(loss, samples=len(x))

With a rule of the shards a module may have rows of the job's tables, by keys of 64 bits: `EmbeddingBag`, `Embedding`.
"""

from dbelief.script.one_ahead import one_ahead

from .embedding import Embedding, EmbeddingBag
from .seeded_dataset import SeededDataset
from .sync import Sync
from .unit_dataset import UnitDataset

__all__ = ["Embedding", "EmbeddingBag", "SeededDataset", "Sync", "UnitDataset", "one_ahead"]
