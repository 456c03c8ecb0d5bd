from .merging import merge

__all__ = ["merge"]
