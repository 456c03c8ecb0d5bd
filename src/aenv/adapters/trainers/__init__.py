"""Adapters for trainers: each file gives a trainer the interface that it knows, on top of `aenv.rollout`.

In some trainers the trainer runs the loop and asks for one step at a time (`EpisodeSource.open`); in others it names a
model endpoint and wants a finished episode (`EpisodeSource.play`). Both are recorded and graded by the code of
`aenv rollout`, with its outcomes: an episode that failed for reasons of the infrastructure or of the environment has no
reward, and each adapter says so in the way that its trainer understands. It is never a reward of 0.
"""
