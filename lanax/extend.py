"""For writers of lowering rules: how to register one, and what the built-in rules are written with. Holds no code.

A primitive gets into lanes in one of three ways, cheapest first (`docs/adding_a_primitive.md` shows all three):

- `elementwise(name, fn, cost)`: `fn(b, dtype, *lane_values)` gives one element of the result from one element of each
  operand.
- `register_composition(name, fun)`: `fun(*args, **params)` is a JAX function that computes the same; it is traced, and
  its equations take the place of the primitive. A rule goes before a composition.
- `register(name, supports=..., cost=...)`: decorates a rule `rule(ctx, *arrays, **params)`, which gives an `Array` or,
  where the primitive has several results, a list of them.

Kernels compute with real numbers. What a primitive does to complex ones is said by `register_complex(name)`, which
decorates a composition of real and imaginary parts, or by `register_partwise([name])`, where it does the same to both.

A second rule, or a second composition, for one primitive raises `lanax.RegistrationError`. Register before the first
call: a program that has been compiled stays as it is.
"""

from lanax._complex import Complex as Complex
from lanax._complex import register_complex as register_complex
from lanax._complex import register_partwise as register_partwise
from lanax._jax import counter_hash as counter_hash
from lanax._jax import dot_dtypes as dot_dtypes
from lanax._jax import eval_jaxpr as eval_jaxpr
from lanax._jax import igamma_grad_a_impl as igamma_grad_a_impl
from lanax._jax import jaxpr_as_fun as jaxpr_as_fun
from lanax._jax import open_and_consts as open_and_consts
from lanax._jax import ragged_dot as ragged_dot
from lanax._jax import random_gamma_impl as random_gamma_impl
from lanax._jax import regularized_incomplete_beta_impl as regularized_incomplete_beta_impl
from lanax._jax import scaled_dot as scaled_dot
from lanax._jax import scan_counts as scan_counts
from lanax._jax import sparse_impl as sparse_impl
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
from lanax._lowering.linalg.householder_looped import factor_pivoted_qr_in_memory as factor_pivoted_qr_in_memory
from lanax._lowering.linalg.householder_looped import factor_qr_in_memory as factor_qr_in_memory
from lanax._lowering.linalg.householder_looped import form_q_in_memory as form_q_in_memory
from lanax._lowering.linalg.householder_looped import make_hessenberg as make_hessenberg
from lanax._lowering.linalg.householder_looped import make_tridiagonal as make_tridiagonal
from lanax._lowering.linalg.householder_looped import multiply_q_in_memory as multiply_q_in_memory
from lanax._lowering.linalg.jacobi import singular_values as singular_values
from lanax._lowering.linalg.jacobi import symmetric_eigen as symmetric_eigen
from lanax._lowering.linalg.looped import factor_cholesky_in_memory as factor_cholesky_in_memory
from lanax._lowering.linalg.looped import factor_lu_in_memory as factor_lu_in_memory
from lanax._lowering.linalg.looped import solve_triangular_in_memory as solve_triangular_in_memory
from lanax._lowering.linalg.loops import each_of as each_of
from lanax._lowering.linalg.loops import reverse as reverse
from lanax._lowering.linalg.loops import turned as turned
from lanax._lowering.linalg.matrices import LONGER_SIDE as LONGER_SIDE
from lanax._lowering.linalg.matrices import LOOPED_SIDE as LOOPED_SIDE
from lanax._lowering.linalg.matrices import UNROLLED_ELEMENTS as UNROLLED_ELEMENTS
from lanax._lowering.linalg.matrices import Flat as Flat
from lanax._lowering.linalg.matrices import each_in_memory as each_in_memory
from lanax._lowering.linalg.matrices import each_matrix as each_matrix
from lanax._lowering.linalg.matrices import flat as flat
from lanax._lowering.linalg.matrices import results_of as results_of
from lanax._lowering.linalg.matrices import rows_of as rows_of
from lanax._lowering.linalg.matrices import unrolls as unrolls
from lanax._lowering.linalg.matrices import why_not_looped as why_not_looped
from lanax._lowering.linalg.schur_looped import make_schur as make_schur
from lanax._lowering.linalg.spectral_looped import singular_in_memory as singular_in_memory
from lanax._lowering.linalg.spectral_looped import symmetric_eigen_in_memory as symmetric_eigen_in_memory
from lanax._lowering.padded import Padded as Padded
from lanax._lowering.product import LARGEST_PRODUCT as LARGEST_PRODUCT
from lanax._lowering.product import is_unrolled as is_unrolled
from lanax._lowering.product import multiplied as multiplied
from lanax._lowering.product import product_sizes as product_sizes
from lanax._lowering.reduction import AND as AND
from lanax._lowering.reduction import LOGSUMEXP as LOGSUMEXP
from lanax._lowering.reduction import MAX as MAX
from lanax._lowering.reduction import MIN as MIN
from lanax._lowering.reduction import OR as OR
from lanax._lowering.reduction import PRODUCT as PRODUCT
from lanax._lowering.reduction import SUM as SUM
from lanax._lowering.reduction import TOGETHER as TOGETHER
from lanax._lowering.reduction import XOR as XOR
from lanax._lowering.reduction import Monoid as Monoid
from lanax._lowering.reduction import Position as Position
from lanax._lowering.reduction import element_index as element_index
from lanax._lowering.reduction import highest as highest
from lanax._lowering.reduction import kept_wide as kept_wide
from lanax._lowering.reduction import lowest as lowest
from lanax._lowering.reduction import reduced as reduced
from lanax._lowering.reduction import reduction_results as reduction_results
from lanax._lowering.reduction import unrolled_steps as unrolled_steps
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
from lanax._math.bessel import bessel_i0e as bessel_i0e
from lanax._math.bessel import bessel_i1e as bessel_i1e
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
from lanax._math.zeta import polygamma as polygamma
from lanax._math.zeta import zeta as zeta
from lanax._surgery import indexed_carries as indexed_carries
from lanax._surgery import inner_jaxprs as inner_jaxprs
from lanax._trace import expand as expand
from lanax._uniformity import analyse as analyse
