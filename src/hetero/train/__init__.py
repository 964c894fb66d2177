"""Train one model over unequal devices, with the result that one device would give.

In: a model, a loss, an optimizer, data, devices. Out: the trained model, and what the run was like.
The names here are for users; what cuts, compresses and tunes a model has packages of its own. torch is loaded by the
modules that need it, never by importing this package.
"""

from __future__ import annotations

from hetero.floor.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hetero.compression.compress import compress as compress
    from hetero.compression.files import load_parameters as load_parameters
    from hetero.splitting.split import Split as Split
    from hetero.splitting.split import split as split
    from hetero.train.callbacks import BestWeights as BestWeights
    from hetero.train.callbacks import Callback as Callback
    from hetero.train.callbacks import EarlyStopping as EarlyStopping
    from hetero.train.callbacks import MLflowLogger as MLflowLogger
    from hetero.train.callbacks import TensorBoardLogger as TensorBoardLogger
    from hetero.train.callbacks import WandbLogger as WandbLogger
    from hetero.train.data import pad_samples as pad_samples
    from hetero.train.launch.fleet import TrainingFleet as TrainingFleet
    from hetero.train.launch.fleet import init as init
    from hetero.train.sample_log import check_sample_log as check_sample_log
    from hetero.train.sample_log import read_sample_log as read_sample_log
    from hetero.train.trainer import Trainer as Trainer
    from hetero.train.values import CheckpointOptions as CheckpointOptions
    from hetero.train.values import DataOptions as DataOptions
    from hetero.train.values import TrainOptions as TrainOptions
    from hetero.tune.search import tune as tune
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "hetero.compression.compress": ("compress",),
            "hetero.compression.files": ("load_parameters",),
            "hetero.splitting.split": ("Split", "split"),
            "hetero.train.callbacks": (
                *("BestWeights", "Callback", "EarlyStopping"),
                *("MLflowLogger", "TensorBoardLogger", "WandbLogger"),
            ),
            "hetero.train.data": ("pad_samples",),
            "hetero.train.launch.fleet": ("TrainingFleet", "init"),
            "hetero.train.sample_log": ("check_sample_log", "read_sample_log"),
            "hetero.train.trainer": ("Trainer",),
            "hetero.train.values": ("CheckpointOptions", "DataOptions", "TrainOptions"),
            "hetero.tune.search": ("tune",),
        },
        {"search": "hetero.train.tune"},
    )
