from tests.local.conftest import _use_platform, platform

__all__ = ["_use_platform", "platform"]
