from .gaps import gaps
from .merging import merge

__all__ = ["gaps", "merge"]
