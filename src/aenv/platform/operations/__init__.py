"""Running a platform: start-up, settings, metrics, readiness, host checks and cleanup."""
