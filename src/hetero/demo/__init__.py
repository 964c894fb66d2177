"""Demo: the main job. A tiled Cholesky factorisation and a diffusing field on every device, measured and checked."""

from hetero.demo.run import run

__all__ = ["run"]
