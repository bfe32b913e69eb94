"""What bounds a job, and what changes would bring, with the numbers that this is taken from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dbelief.job import Diloco, Downpour, Elastic, Job, ScriptModel, SyncSgd
from dbelief.monitor.format import plural, short_time
from dbelief.plan.shard_traffic import fetched_bytes, pushed_bytes

from .measurements import Measurements
from .model_of import model_of
from .step_model import Change, StepModel

Bound = Literal["computing", "data", "link", "one machine", "shards", "straggler", "small batch", "leases"]

WORTH = 1.05
"""Factor from which a change is recommended."""
NEARLY = 0.95
"""Share of the best rate that fewer workers or shards, or a shorter period, suffice for."""
FULL = 0.85
"""Share of the free processors from which they bound a job."""
MOST_WORKERS, MOST_SHARDS, MOST_PERIOD, MOST_BATCH = 2, 2, 256, 64
"""Multiples, and mini-batches, up to which changes are tried: a model is not to be trusted far from measurements."""
AVOIDABLE = 0.2
"""Share of the workers' time in which they wait for work, or for the slowest, that bounds a job."""
LEASES_EACH = 16
"""Leases of a worker in a run, of a size that is recommended."""
STRAGGLES = 1.25
"""Multiple of the median time of a mini-batch, from which a worker in lockstep is a straggler."""


@dataclass(frozen=True)
class Advice:
    """One change.

    Attributes
    ----------
    what
        In words.
    gain
        Samples per second after it, as a multiple of those measured.
    because
        The numbers that the gain is taken from.
    workers, shards
        Number to scale to; None: it is no such change.
    settings
        Fields to start the job with.
    caution
        What else it changes; "": nothing.
    """

    what: str
    gain: float
    because: str
    workers: int | None = None
    shards: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    caution: str = ""

    @property
    def worth(self) -> bool:
        """Whether it is recommended."""
        return self.gain >= WORTH

    @property
    def scales(self) -> bool:
        """Whether a running job can be changed so."""
        return self.workers is not None or self.shards is not None


@dataclass(frozen=True)
class Findings:
    """What was found.

    Attributes
    ----------
    bound
        What takes the largest part of the workers' time.
    reason
        The same in words, with numbers.
    shares
        Parts of the workers' time: computing, data, exchange, straggler, idle. They add up to 1.
    advice
        Changes that are recommended, the largest gain first.
    nothing
        Plausible changes that would bring next to nothing.
    """

    measurements: Measurements
    model: StepModel
    bound: Bound
    reason: str
    shares: Mapping[str, float]
    advice: tuple[Advice, ...]
    nothing: tuple[Advice, ...]

    def described(self) -> dict[str, Any]:
        """The same as plain values."""
        found = self.measurements
        return {
            "job": found.job.name,
            "over": found.over,
            "window_s": found.window_s,
            "samples_per_s": found.samples_per_s,
            "workers": len(found.workers),
            "shards": len(found.shards),
            "bound": self.bound,
            "reason": self.reason,
            "shares": dict(self.shares),
            "step_s": {
                "own": list(self.model.own_s),
                "exchange": self.model.exchange_s,
                "latency": self.model.latency_s,
                "bytes": self.model.bytes_s,
                "processors": self.model.processor_s,
                "shard": self.model.shard_s,
            },
            "machines": [vars(one) | {"busy_share": one.busy_share} for one in found.machines],
            "advice": [_plain(one) for one in self.advice],
            "nothing": [_plain(one) for one in self.nothing],
        }


def _plain(advice: Advice) -> dict[str, Any]:
    return vars(advice) | {"settings": dict(advice.settings)}


def findings_of(found: Measurements) -> Findings:
    """What bounds the job, and what to do."""
    model = model_of(found)
    shares = _shares(found, model)
    tried = [*_workers(found, model), *_shards(found, model), *_settings(found, model), *_alone(found, model)]
    bound, reason = _bound(found, model, shares, tried)
    advice = sorted((one for one in tried if one.worth), key=lambda one: -one.gain)
    return Findings(found, model, bound, reason, shares, tuple(advice), tuple(one for one in tried if not one.worth))


def _shares(found: Measurements, model: StepModel) -> dict[str, float]:
    """Parts of the time of all workers."""
    total_s = sum(one.time_s for one in found.workers)
    steps = sum(one.steps for one in found.workers)

    def part(phase: str) -> float:
        return sum(one.seconds.get(phase, 0.0) for one in found.workers) / total_s

    exchange, idle, waits = part("fetch") + part("push"), part("wait"), 0.0
    if model.lockstep:
        apart = exchange + (idle if found.job.strategy.grouped else 0.0)
        own = min(apart, model.exchange_s * steps / total_s)
        waits, exchange, idle = apart - own, own, 0.0 if found.job.strategy.grouped else idle
    return {"computing": part("compute"), "data": part("data"), "exchange": exchange, "straggler": waits, "idle": idle}


# -- what bounds it ----------------------------------------------------------------------------------------


def _bound(
    found: Measurements, model: StepModel, shares: Mapping[str, float], tried: list[Advice]
) -> tuple[Bound, str]:
    avoidable = [name for name in ("idle", "straggler") if shares[name] >= AVOIDABLE]
    largest = max(avoidable or shares, key=lambda name: shares[name])
    percent = f"{100 * shares[largest]:.0f} % of the workers' time"
    if largest == "data":
        return "data", f"reading and preparing samples takes {percent}, {_each(found, 'data')} of a mini-batch"
    if largest == "straggler":
        slowest, median_s = max(model.own_s), sorted(model.own_s)[(len(model.own_s) - 1) // 2]
        times = f"{short_time(slowest)} for a mini-batch, the median {short_time(median_s)}"
        return "straggler", f"waiting for the slowest worker takes {percent}: it needs {times}"
    if largest == "idle":
        return "leases", _idle_reason(found, percent)
    if largest == "exchange":
        return _exchange_bound(found, model, percent, tried)
    return "computing", _computing_reason(found, percent)


def _each(found: Measurements, *phases: str) -> str:
    """Time of a mini-batch in some phases."""
    workers = found.training
    return short_time(sum(one.step_s(*phases) for one in workers) / len(workers))


def _idle_reason(found: Measurements, percent: str) -> str:
    idle = [one.number for one in found.workers if one.seconds.get("wait", 0.0) > one.time_s / 2]
    leases = _leases(found)
    count = "" if leases is None else f": {plural(leases, 'lease')} of {found.lease_samples:,} samples are all there is"
    return (
        f"waiting for leases takes {percent}{count}; {len(idle)} of {plural(len(found.workers), 'worker')} mostly idle"
    )


def _computing_reason(found: Measurements, percent: str) -> str:
    takes = f"computing takes {percent}, {_each(found, 'compute')} of a mini-batch"
    full = [one for one in found.machines if one.workers and one.busy_share >= FULL]
    if full:
        one = full[0]
        others = f", and other programs {one.others:.1f}" if one.others >= 0.1 else ""
        return f"{takes}; the job uses {one.used:.1f} of {one.cores:g} processors{others}"
    machines = [one for one in found.machines if one.workers]
    used = ", ".join(f"{one.used:.1f} of {one.cores:g}" for one in machines)
    return f"{takes}; processors in use: {used}" if used else takes


def _exchange_bound(found: Measurements, model: StepModel, percent: str, tried: list[Advice]) -> tuple[Bound, str]:
    takes = f"exchanges with shards take {percent}, {short_time(model.exchange_s)} of a mini-batch"
    if model.shard_s * model.rate >= FULL:
        return "shards", f"{takes}; a shard's process uses {model.shard_s * model.rate:.2f} processors"
    if model.link_s + model.latency_s < model.exchange_s / 2 or not model.geometry.own:
        small = f"{takes}, beside {short_time(model.mean_own_s)} of computing, on one network: messages, not bytes"
        return "small batch", small
    if any(one.what.startswith("one machine") and one.worth for one in tried):
        return "one machine", f"{takes}, over links, beside {short_time(model.mean_own_s)} of computing"
    busiest = model.rate * model.geometry.shard * model.bytes_s * max(model.sent_share, 1 - model.sent_share)
    if model.geometry.shard * model.workers > model.geometry.own * 1.5 and busiest >= FULL / 2:
        return "shards", f"{takes}; the link of a shard's host is in use {100 * min(1.0, busiest):.0f} % of the time"
    parts = f"latency {short_time(model.latency_s)}, bytes {short_time(model.link_s)}"
    return "link", f"{takes}, over links ({parts}), beside {short_time(model.mean_own_s)} of computing"


# -- changes -----------------------------------------------------------------------------------------------


def _least_enough(counts: range, factor: Callable[[int], float]) -> tuple[int, float]:
    """The least number that gives nearly the best factor."""
    factors = {count: factor(count) for count in counts}
    best = max(factors.values())
    count = min(count for count, one in factors.items() if one >= NEARLY * best)
    return count, factors[count]


def _workers(found: Measurements, model: StepModel) -> Iterator[Advice]:
    """More workers on the same machines, or fewer."""
    now = len(found.workers)
    if _leases(found) is not None and _lease_use(found) < NEARLY:
        return
    count, gain = _least_enough(range(1, MOST_WORKERS * now + 1), lambda count: model.factor(Change(workers=count)))
    if gain < WORTH and count >= now:
        count = 2 * now
        gain = model.factor(Change(workers=count))
    elif count < now:
        because = f"{count} of {now} would reach {100 * gain:.0f} % of the samples/s; " + _processors(found)
        yield Advice(f"fewer workers: {count} instead of {now}", gain, because, workers=count)
        count, gain = 2 * now, model.factor(Change(workers=2 * now))
    yield Advice(
        f"{count} workers instead of {now}, on the same machines",
        gain,
        f"{_each(found, 'compute', 'data')} of computing and data, {short_time(model.exchange_s)} of exchange in a "
        f"mini-batch; {_processors(found)}",
        workers=count,
    )
    if any(one.busy_share >= FULL for one in found.machines) and gain < WORTH:
        machines = [one for one in found.machines if one.workers]
        more = (len(machines) + 1) / len(machines)
        larger = replace(model, processors=model.processors * more)
        free = larger.predicted(Change(workers=math.ceil(now * more))) / model.present
        yield Advice(
            "one machine more, with as many workers",
            free,
            f"all processors are in use; {plural(len(machines), 'machine')} now",
            caution="its link is not measured",
        )


def _processors(found: Measurements) -> str:
    machines = [one for one in found.machines if one.workers]
    if not machines:
        return "processors were not reported"
    used, free = sum(one.used for one in machines), sum(one.free for one in machines)
    return f"{used:.1f} of {free:.1f} free processors in use"


def _shards(found: Measurements, model: StepModel) -> Iterator[Advice]:
    """More shards."""
    if found.job.strategy.grouped:
        return
    now = model.shards
    count, gain = _least_enough(range(now, MOST_SHARDS * now + 1), lambda count: model.factor(Change(shards=count)))
    if count == now:
        count, gain = now + 1, model.factor(Change(shards=now + 1))
    part = model.geometry.shard * model.workers
    link = f"a shard's link carries {part:.2g} times a worker's bytes, a worker's own {model.geometry.own:.2g} times"
    serial = f"a shard's process uses {model.shard_s * model.rate:.2f} processors"
    because = f"{link if model.geometry.own else 'there is no link'}; {serial}"
    yield Advice(f"{count} shards instead of {now}, on other hosts", gain, because, shards=count)


def _settings(found: Measurements, model: StepModel) -> Iterator[Advice]:
    """Fields of the job file."""
    job = found.job
    yield from _leasing(found, model)
    yield from _waiting(job, model)
    yield from _batches(found, model)
    if job.strategy.grouped:
        return
    yield from _periods(job, model)
    if isinstance(job.strategy, Elastic):  # which sends weights: no codec of gradients is for them
        return
    yield from _codecs(job, model)
    if not isinstance(job.strategy, Diloco):
        yield from _diloco(job, model)


def _leasing(found: Measurements, model: StepModel) -> Iterator[Advice]:
    """Smaller leases."""
    leases, now = _leases(found), len(found.workers)
    if leases is None or leases >= LEASES_EACH * now or now < 2 or model.lockstep:
        return
    job, total = found.job, found.total_samples or 0
    strategy: Any = job.strategy
    cycle = strategy.batch * math.lcm(strategy.n_push, strategy.n_fetch)
    size = max(1, total // (LEASES_EACH * now) // cycle) * cycle
    if size >= found.lease_samples:
        return
    gain = _use(total, size, now) / _lease_use(found)
    because = f"{plural(leases, 'lease')} of {found.lease_samples:,} samples for {plural(now, 'worker')}"
    yield Advice(f"leases of {size:,} samples", gain, because, settings={"strategy.lease": str(size)})
    fewer = min(now, leases)
    if fewer < now:
        same = _use(total, found.lease_samples, fewer) * fewer / (_lease_use(found) * now)
        yield Advice(f"fewer workers: {fewer}, one for each lease", same, because, workers=fewer)


def _leases(found: Measurements) -> int | None:
    """Leases of the usual size in the whole job; None where that is not known."""
    if not found.total_samples or not found.lease_samples:
        return None
    return math.ceil(found.total_samples / found.lease_samples)


def _use(total: int, size: int, workers: int) -> float:
    """Share of the workers' time that leases of this size leave for training, if all workers are as fast."""
    leases = total / size
    return leases / (workers * math.ceil(leases / workers))


def _lease_use(found: Measurements) -> float:
    return _use(found.total_samples or 1, found.lease_samples or 1, len(found.workers))


def _waiting(job: Job, model: StepModel) -> Iterator[Advice]:
    """In lockstep: waiting for fewer, or for none."""
    own = sorted(model.own_s)
    if not model.lockstep or len(own) < 2:
        return
    slow = sum(one > STRAGGLES * own[(len(own) - 1) // 2] for one in own) or 1
    times = f"the slowest needs {short_time(own[-1])} for a mini-batch, the next {short_time(own[-1 - slow])}"
    if isinstance(job.strategy, Downpour):
        gain = model.factor(Change(lockstep=False))
        caution = "gradients are stale then, which limits the rate"
        yield Advice(
            "no lockstep: strategy.staleness null", gain, times, None, None, {"strategy.staleness": "null"}, caution
        )
    if isinstance(job.strategy, Diloco) and job.strategy.quorum is None:
        gain = model.factor(Change(without_slowest=slow))
        settings = {"strategy.quorum": str(len(own) - slow)}
        yield Advice(f"rounds that end with {len(own) - slow} of {len(own)} workers", gain, times, settings=settings)
    if isinstance(job.strategy, SyncSgd):
        gain = model.factor(Change(without_slowest=slow))
        yield Advice(
            f"the job without {plural(slow, 'slow worker')}", gain, times, caution="end its process or move it"
        )


def _batches(found: Measurements, model: StepModel) -> Iterator[Advice]:
    """Larger mini-batches."""
    strategy: Any = found.job.strategy
    factor, gain = _least_of_powers(MOST_BATCH, lambda times: model.factor(Change(batch=float(times))))
    because = f"{short_time(model.exchange_s)} of exchange beside {short_time(model.mean_own_s)} of computing and data"
    settings = {"strategy.batch": str(strategy.batch * factor)}
    caution = (
        "at least: what a mini-batch costs whatever its size is not known; fewer steps of an epoch, see large_batches"
    )
    yield Advice(
        f"mini-batches of {strategy.batch * factor} samples", gain, because, settings=settings, caution=caution
    )


def _least_of_powers(most: int, factor: Callable[[int], float]) -> tuple[int, float]:
    """As `_least_enough`, over powers of two from 2."""
    factors = {2**power: factor(2**power) for power in range(1, most.bit_length())}
    best = max(factors.values())
    count = min(count for count, one in factors.items() if one >= NEARLY * best)
    return count, factors[count]


def _periods(job: Job, model: StepModel) -> Iterator[Advice]:
    """More mini-batches between two exchanges."""
    strategy = job.strategy
    because = f"{short_time(model.exchange_s)} of exchange beside {short_time(model.mean_own_s)} of computing and data"
    times, gain = _least_of_powers(MOST_PERIOD, lambda times: model.factor(Change(period=float(times))))
    if isinstance(strategy, Diloco):
        settings = {"strategy.steps": str(strategy.steps * times)}
        yield Advice(f"rounds of {strategy.steps * times} mini-batches", gain, because, settings=settings)
    elif isinstance(strategy, Elastic) and strategy.name in ("async-easgd", "async-measgd"):
        settings = {"strategy.period": str(strategy.period * times)}
        yield Advice(f"an exchange in {strategy.period * times} mini-batches", gain, because, settings=settings)
    elif isinstance(strategy, Downpour) and strategy.staleness is None and not isinstance(job.model, ScriptModel):
        n_push, n_fetch = strategy.n_push * times, strategy.n_fetch * times
        settings = {"strategy.n_push": str(n_push), "strategy.n_fetch": str(n_fetch)}
        caution = "gradients are sums over so many mini-batches, and staler"
        yield Advice(f"n_push {n_push}, n_fetch {n_fetch}", gain, because, settings=settings, caution=caution)


def _codecs(job: Job, model: StepModel) -> Iterator[Advice]:
    """Fewer bytes."""
    if not model.link_s or job.wire.push.name != "fp32":
        return
    volume = small_volume(job)
    gain = model.factor(Change(volume=volume))
    because = f"{short_time(model.link_s)} of an exchange are bytes; {100 * volume:.0f} % of them would remain"
    settings = {"wire.push": "int8", "wire.pull": "bf16"}
    yield Advice("wire.push int8, wire.pull bf16", gain, because, settings=settings, caution="numbers are rounded")


def small_volume(job: Job) -> float:
    """Bytes by small codecs, as a multiple of the job's own."""
    numbers = 1_000_000
    small = job.wire.model_copy(update={"push": job.wire.push.model_copy(update={"name": "int8"}), "pull": "bf16"})
    pushed, fetched = pushed_bytes(small, numbers), fetched_bytes(small, numbers)
    return (pushed + fetched) / (pushed_bytes(job.wire, numbers) + fetched_bytes(job.wire, numbers))


def _diloco(job: Job, model: StepModel) -> Iterator[Advice]:
    """DiLoCo in place of an exchange for each mini-batch."""
    strategy: Any = job.strategy
    if not model.link_s or job.tables or isinstance(job.model, ScriptModel):
        return
    steps, gain = _least_of_powers(
        MOST_PERIOD, lambda steps: model.factor(Change(period=steps / strategy.n_push, lockstep=True))
    )
    rule = ", ".join(f"{name}: {value}" for name, value in strategy.rule.model_dump().items())
    text = f"{{name: diloco, batch: {strategy.batch}, steps: {steps}, inner: {{{rule}}}}}"
    because = f"{short_time(model.exchange_s)} of exchange in {steps} mini-batches of {short_time(model.mean_own_s)}"
    caution = "another strategy: check its quality on validation data"
    yield Advice(
        f"diloco with rounds of {steps} mini-batches", gain, because, settings={"strategy": text}, caution=caution
    )


def _alone(found: Measurements, model: StepModel) -> Iterator[Advice]:
    """One machine with its workers, without the others."""
    networks = [one.processors.network for one in found.training if one.processors is not None]
    if not model.geometry.own or len(set(networks)) < 2:
        return
    each = max(networks.count(network) for network in networks)
    cores = max(one.processors.cores for one in found.training if one.processors is not None)
    gain = model.alone(each, cores) / model.present
    because = (
        f"a mini-batch takes {short_time(model.mean_own_s)} there, and {short_time(model.exchange_s)} more with links"
    )
    settings = {"replicas": str(each), "shards": "1"}
    yield Advice(f"one machine alone, with {plural(each, 'worker')}", gain, because, settings=settings)
