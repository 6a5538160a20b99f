"""Complex programs in real arithmetic: each complex value becomes two real ones, before anything is planned or lowered.

`split` is the pass; `structure`, `arithmetic`, `functions`, `fourier`, `linalg`, `eigen`, `schur` and `singular` say
what becomes of each primitive.
"""

from lanax._complex import arithmetic as _arithmetic
from lanax._complex import eigen as _eigen
from lanax._complex import fourier as _fourier
from lanax._complex import functions as _functions
from lanax._complex import linalg as _linalg
from lanax._complex import schur as _schur
from lanax._complex import singular as _singular
from lanax._complex import structure as _structure
from lanax._complex.registry import Complex as Complex
from lanax._complex.registry import register_complex as register_complex
from lanax._complex.registry import register_partwise as register_partwise
from lanax._complex.split import split as split

# Importing them registers what they hold.
assert all((_arithmetic, _eigen, _fourier, _functions, _linalg, _schur, _singular, _structure))
