"""The benchmark itself: found, told where its data is, and kept from looking things up on the network."""

import importlib.util
import os
from pathlib import Path

DATA = "tau2_bench_data"
MISSING = (
    "TAU2-Bench is not installed in the Python that runs this environment. Install it there: "
    "`aenv pull tau2-env tau2 && python tau2/install.py`, which downloads it, or, without a network, "
    "`python tau2/install.py --source CHECKOUT` (or AENV_TAU2_SOURCE) with a checkout of "
    "github.com/sierra-research/tau2-bench. The package named tau2 on PyPI is something else."
)


def find() -> str | None:
    """Make ready for `import tau2`; why that is not possible, if it is not."""
    package, data = importlib.util.find_spec("tau2"), importlib.util.find_spec(DATA)
    if package is None or data is None or not data.submodule_search_locations:
        return MISSING
    os.environ.setdefault("TAU2_DATA_DIR", str(Path(next(iter(data.submodule_search_locations)))))
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or importing it asks a web server
    os.environ.setdefault("LOGURU_LEVEL", "ERROR")
    if os.environ.get("HTTP_PROXY"):  # a model on this machine's own loopback is reached through the proxy as well
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = ""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # a process with threads cannot be forked
        os.environ.setdefault(name, "1")
    return None
