"""Synthesis of tasks: propose call sequences, check them in instances, and write those that pass as a dataset."""

from aenv.rollout.synthesis.synthesis_run import Synthesis, SynthesisProgress

__all__ = ["Synthesis", "SynthesisProgress"]
