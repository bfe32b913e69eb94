"""The timeout after which a silent shard is killed and started on another node."""

from __future__ import annotations

from dbelief.launch.slurm.silence import Silence


def test_silent_shard_is_lost_after_a_timeout() -> None:
    silence = Silence(beat_s=5.0)
    assert not silence.is_lost("ps-0", 1, 0.5, 100.0)
    assert not silence.is_lost("ps-0", 1, 0.5, 102.0)  # heard since it was started
    assert not silence.is_lost("ps-0", 1, 14.0, 116.0)
    assert silence.is_lost("ps-0", 1, 16.0, 118.0)


def test_a_shard_that_is_still_starting_is_not_lost() -> None:
    silence = Silence(beat_s=5.0)
    silence.is_lost("ps-0", 1, 0.5, 100.0)
    silence.is_lost("ps-0", 1, 0.5, 102.0)
    # Started again: what is silent is its earlier life.
    assert not any(silence.is_lost("ps-0", 2, 16.0 + second, 118.0 + second) for second in range(60))


def test_old_incarnation_is_not_taken_for_the_new() -> None:
    silence = Silence(beat_s=5.0)
    for second in range(60):
        assert not silence.is_lost("ps-0", 2, second + 1.0, 200.0 + second)


def test_longer_heartbeat_deadlines_are_kept() -> None:
    silence = Silence(beat_s=20.0)
    silence.is_lost("ps-0", 1, 0.5, 100.0)
    silence.is_lost("ps-0", 1, 0.5, 102.0)
    assert not silence.is_lost("ps-0", 1, 59.0, 161.0)
    assert silence.is_lost("ps-0", 1, 61.0, 163.0)
