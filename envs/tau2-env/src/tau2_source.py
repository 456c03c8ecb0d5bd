"""The benchmark itself: found, told where its data is, and kept from looking things up on the network."""

import importlib
import importlib.util
import os

DATA = "tau2_bench_data"
MISSING = (
    "TAU2-Bench is not installed in the Python that runs this environment. Install it there, for 3.11 to 3.13: "
    "`aenv bench tau2 --fetch`, or `aenv pull tau2-env tau2 && python tau2/install.py`, download it. With no network: "
    "`python tau2/install.py --source CHECKOUT` (or AENV_TAU2_SOURCE) with a checkout of "
    "github.com/sierra-research/tau2-bench. The package named tau2 on PyPI is something else."
)
SILENT = "TAU2-Bench imports audioop, which Python has no longer since 3.13; what replaces it: pip install audioop-lts"


def find() -> str | None:
    """Make ready for `import tau2`; why that is not possible, if it is not."""
    data = importlib.util.find_spec(DATA)
    if importlib.util.find_spec("tau2") is None or data is None or data.origin is None:
        return MISSING
    if importlib.util.find_spec("audioop") is None:
        return SILENT
    if os.environ.get("HTTP_PROXY"):  # a model on this machine's own loopback is reached through the proxy as well
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = ""
    importlib.import_module(DATA)
    return None
