"""Bulk work: one function or model over a mountain of records, every device at its own batch size.

In: a function, a source of records. Out: the results, and what the run was like. The names here are for users; those of
anonymisation stand here too.
"""

from __future__ import annotations

from hetero.floor.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hetero.batch.api import map_batches as map_batches
    from hetero.batch.files import File as File
    from hetero.batch.files import Files as Files
    from hetero.batch.files import Images as Images
    from hetero.batch.options import BatchLimits as BatchLimits
    from hetero.batch.options import BatchOptions as BatchOptions
    from hetero.batch.outcome import BatchOutcome as BatchOutcome
    from hetero.batch.stages import pipeline as pipeline
    from hetero.batch.tables import Tables as Tables
    from hetero.privacy.run import AnonymisationReport as AnonymisationReport
    from hetero.privacy.run import Anonymiser as Anonymiser
    from hetero.privacy.run import anonymise as anonymise
    from hetero.privacy.run import fit_anonymiser as fit_anonymiser
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "hetero.batch.api": ("map_batches",),
            "hetero.batch.files": ("File", "Files", "Images"),
            "hetero.batch.options": ("BatchLimits", "BatchOptions"),
            "hetero.batch.outcome": ("BatchOutcome",),
            "hetero.batch.stages": ("pipeline",),
            "hetero.batch.tables": ("Tables",),
            "hetero.privacy.run": ("AnonymisationReport", "Anonymiser", "anonymise", "fit_anonymiser"),
        },
    )
