"""Gives a bench that runs MLX in its own process the BLAS that engines get."""

import os
import sys

from node_agent.pool.process import Launcher, plan_environment
from tests.support.mlx_engine import find_preload


def restart_with_blas(module: str) -> None:
    """Start the process anew with a fast BLAS preloaded, if one is installed and is not yet.

    Without it forward passes take some 20 times as long, and every ratio to them is wrong.
    """
    preload = find_preload()
    if preload is None or str(preload) in os.environ.get("LD_PRELOAD", ""):
        return
    environment = plan_environment(Launcher(preload=preload), os.environ)
    os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], environment)
