"""Recorded episodes: what an agent saw and did in an environment, event by event, and how it ended.

An *episode* is one attempt of one sample of one task. A *run* is a set of episodes. This package records, stores,
compares, replays and exports them; it starts no agents (`aenv.rollout` does).
"""

from aenv.trajectory.events import EpisodeKey, EpisodeSummary, Outcome, RunRecord
from aenv.trajectory.reader import EpisodeReader
from aenv.trajectory.recorder import EpisodeRecorder
from aenv.trajectory.store import TrajectoryStore

__all__ = [
    "EpisodeKey",
    "EpisodeReader",
    "EpisodeRecorder",
    "EpisodeSummary",
    "Outcome",
    "RunRecord",
    "TrajectoryStore",
]
