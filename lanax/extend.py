"""For writers of lowering rules: how to register one, and what the built-in rules are written with. Holds no code.

A primitive gets into lanes in one of three ways, cheapest first (`docs/adding_a_primitive.md` shows all three):

- `elementwise(name, fn, cost)`: `fn(b, dtype, *lane_values)` gives one element of the result from one element of each
  operand.
- `register_composition(name, fun)`: `fun(*args, **params)` is a JAX function that computes the same; it is traced, and
  its equations take the place of the primitive. A rule goes before a composition.
- `register(name, supports=..., cost=...)`: decorates a rule `rule(ctx, *arrays, **params)`, which gives an `Array` or,
  where the primitive has several results, a list of them.

A second rule, or a second composition, for one primitive raises `lanax.RegistrationError`. Register before the first
call: a program that has been compiled stays as it is.
"""

from lanax._jax import jaxpr_as_fun as jaxpr_as_fun
from lanax._jax import open_and_consts as open_and_consts
from lanax._jax import scan_counts as scan_counts
from lanax._jax import without_consts as without_consts
from lanax._llvm import types as types
from lanax._llvm.memory import Index as Index
from lanax._llvm.memory import to_lane as to_lane
from lanax._llvm.memory import to_memory as to_memory
from lanax._llvm.types import LaneType as LaneType
from lanax._llvm.types import lane_type as lane_type
from lanax._lowering.arrays import UNROLL as UNROLL
from lanax._lowering.arrays import Array as Array
from lanax._lowering.arrays import Buffer as Buffer
from lanax._lowering.arrays import Elements as Elements
from lanax._lowering.arrays import Lazy as Lazy
from lanax._lowering.arrays import Memory as Memory
from lanax._lowering.arrays import is_cheap as is_cheap
from lanax._lowering.context import Context as Context
from lanax._lowering.context import Rule as Rule
from lanax._lowering.emitter import LOOP_UNROLL as LOOP_UNROLL
from lanax._lowering.emitter import Emitter as Emitter
from lanax._lowering.emitter import row_major as row_major
from lanax._lowering.emitter import within as within
from lanax._lowering.families import Fn as Fn
from lanax._lowering.families import elementwise as elementwise
from lanax._lowering.fold import Values as Values
from lanax._lowering.fold import Visit as Visit
from lanax._lowering.fold import blocks as blocks
from lanax._lowering.fold import each as each
from lanax._lowering.fold import fold as fold
from lanax._lowering.fold import pairwise as pairwise
from lanax._lowering.jaxpr import lower_jaxpr as lower_jaxpr
from lanax._lowering.keys import is_key as is_key
from lanax._lowering.keys import words_shape as words_shape
from lanax._lowering.lanewise.arithmetic import absolute as absolute
from lanax._lowering.lanewise.arithmetic import clamp as clamp
from lanax._lowering.lanewise.arithmetic import divide as divide
from lanax._lowering.lanewise.arithmetic import is_signed as is_signed
from lanax._lowering.lanewise.arithmetic import maximum as maximum
from lanax._lowering.lanewise.arithmetic import minimum as minimum
from lanax._lowering.lanewise.arithmetic import next_after as next_after
from lanax._lowering.lanewise.arithmetic import remainder as remainder
from lanax._lowering.lanewise.arithmetic import sign as sign
from lanax._lowering.lanewise.arithmetic import total_order as total_order
from lanax._lowering.lanewise.bits import count_bits as count_bits
from lanax._lowering.lanewise.bits import multiply_high as multiply_high
from lanax._lowering.lanewise.bits import shift as shift
from lanax._lowering.lanewise.conversion import convert as convert
from lanax._lowering.lanewise.rounding import round_to as round_to
from lanax._lowering.linalg.gauss import Matrix as Matrix
from lanax._lowering.linalg.gauss import factor_cholesky as factor_cholesky
from lanax._lowering.linalg.gauss import factor_lu as factor_lu
from lanax._lowering.linalg.gauss import permutation_of as permutation_of
from lanax._lowering.linalg.gauss import solve_triangular as solve_triangular
from lanax._lowering.linalg.gauss import solve_tridiagonal as solve_tridiagonal
from lanax._lowering.linalg.gauss import transposed as transposed
from lanax._lowering.linalg.householder import factor_qr as factor_qr
from lanax._lowering.linalg.householder import form_q as form_q
from lanax._lowering.linalg.householder import multiply_q as multiply_q
from lanax._lowering.linalg.jacobi import symmetric_eigen as symmetric_eigen
from lanax._lowering.linalg.looped import factor_cholesky_in_memory as factor_cholesky_in_memory
from lanax._lowering.linalg.looped import factor_lu_in_memory as factor_lu_in_memory
from lanax._lowering.linalg.looped import solve_triangular_in_memory as solve_triangular_in_memory
from lanax._lowering.registry import COMPOSITIONS as COMPOSITIONS
from lanax._lowering.registry import RULES as RULES
from lanax._lowering.registry import Entry as Entry
from lanax._lowering.registry import Supports as Supports
from lanax._lowering.registry import register as register
from lanax._lowering.registry import register_composition as register_composition
from lanax._lowering.windows import Positions as Positions
from lanax._lowering.windows import Windows as Windows
from lanax._lowering.windows import aside as aside
from lanax._lowering.windows import read_windows as read_windows
from lanax._lowering.windows import readable as readable
from lanax._math.error import erf as erf
from lanax._math.error import erf_inv as erf_inv
from lanax._math.error import erfc as erfc
from lanax._math.exponential import exp as exp
from lanax._math.exponential import exp2 as exp2
from lanax._math.exponential import expm1 as expm1
from lanax._math.exponential import logistic as logistic
from lanax._math.gamma import digamma as digamma
from lanax._math.gamma import lgamma as lgamma
from lanax._math.hyperbolic import acosh as acosh
from lanax._math.hyperbolic import asinh as asinh
from lanax._math.hyperbolic import atanh as atanh
from lanax._math.hyperbolic import cosh as cosh
from lanax._math.hyperbolic import sinh as sinh
from lanax._math.hyperbolic import tanh as tanh
from lanax._math.inverse import acos as acos
from lanax._math.inverse import asin as asin
from lanax._math.inverse import atan as atan
from lanax._math.inverse import atan2 as atan2
from lanax._math.logarithm import log as log
from lanax._math.logarithm import log1p as log1p
from lanax._math.power import cbrt as cbrt
from lanax._math.power import pow as pow
from lanax._math.power import pow_known as pow_known
from lanax._math.power import rsqrt as rsqrt
from lanax._math.trigonometric import cos as cos
from lanax._math.trigonometric import sin as sin
from lanax._math.trigonometric import tan as tan
from lanax._surgery import indexed_carries as indexed_carries
from lanax._trace import expand as expand
from lanax._uniformity import analyse as analyse
