"""Capture proxy: between an agent program that nobody changed and its model, recording what both say."""

from aenv.rollout.capture.proxy import CaptureProxy, Upstream
from aenv.rollout.capture.session import CaptureSession

__all__ = ["CaptureProxy", "CaptureSession", "Upstream"]
