"""What the elementary functions share: float formats, NaN-safe clamps, exponent bits, sums and products in two parts.
Knows no function by name."""

from __future__ import annotations

import dataclasses

from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.lanes import Lanes, Operand

INF = float("inf")
NAN = float("nan")

#: The sum of the bits of x and of about 1 / x, by bits of the mantissa.
ROUGH_INVERSE = {23: 0x7EF311C7, 52: 0x7FDE6238502484BA}


@dataclasses.dataclass(frozen=True)
class Format:
    """A floating-point format: how many bits hold the mantissa, and numbers that follow from that.

    Attributes:
      kind, integer: LLVM types of the float and of an integer as wide.
      mantissa: bits of the mantissa, without the hidden one.
      bias: what is added to an exponent before it is stored.
    """

    kind: ir.Type
    integer: ir.IntType
    mantissa: int
    bias: int

    @property
    def magic(self) -> float:
        """1.5 * 2^mantissa: added to a small float, it leaves the nearest integer in the low bits of the sum."""
        return 1.5 * 2.0**self.mantissa

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return (2.0 - 2.0**-self.mantissa) * 2.0**self.bias

    @property
    def least(self) -> float:
        """The least positive normal number."""
        return 2.0 ** (1 - self.bias)

    @property
    def sign_bit(self) -> int:
        """The bits of -0.0."""
        return 1 << (self.integer.width - 1)

    @property
    def exponent_bits(self) -> int:
        """Ones where the sign and the exponent are."""
        return -1 << self.mantissa

    @property
    def one_bits(self) -> int:
        """The bits of 1.0."""
        return self.bias << self.mantissa


FLOAT32 = Format(t.F32, t.I32, 23, 127)
FLOAT64 = Format(t.F64, t.I64, 52, 1023)


def format_of(x: ir.Value) -> Format:
    """The format of a float32 or float64 lane value; raises TypeError for other types."""
    kind = t.element(x.type)
    if kind == t.F32:
        return FLOAT32
    if kind == t.F64:
        return FLOAT64
    raise TypeError(f"no elementary functions on lanes of type {kind}")


def is_double(x: ir.Value) -> bool:
    """Whether the lanes of `x` are float64."""
    return format_of(x) is FLOAT64


def at_most(b: Lanes, x: ir.Value, limit: float) -> ir.Value:
    """min(x, limit); NaN stays NaN. One instruction on x86: `minps` returns its second operand on NaN."""
    return b.select(b.lt(b.like(x, limit), x), limit, x)


def at_least(b: Lanes, x: ir.Value, limit: float) -> ir.Value:
    """max(x, limit); NaN stays NaN."""
    return b.select(b.gt(b.like(x, limit), x), limit, x)


def polynomial(b: Lanes, x: ir.Value, coefficients: list[float]) -> ir.Value:
    """c[0] + c[1] x + ...; a long one has its upper terms as even and odd halves, which halves the latency for one more
    instruction and costs no accuracy."""
    if len(coefficients) < 9:
        return b.polynomial(x, coefficients)
    square = b.mul(x, x)
    upper = b.fma(b.polynomial(square, coefficients[3::2]), x, b.polynomial(square, coefficients[2::2]))
    return b.fma(b.fma(upper, x, coefficients[1]), x, coefficients[0])


def estrin(b: Lanes, x: ir.Value, coefficients: list[float]) -> ir.Value:
    """c[0] + c[1] x + ..., by halves (Estrin): a few more instructions than Horner's rule, a third of the latency."""
    halves = zip(coefficients[::2], coefficients[1::2], strict=False)
    terms: list[Operand] = [b.fma(x, high, low) for low, high in halves]
    if len(coefficients) % 2:
        terms.append(coefficients[-1])
    power = x
    while len(terms) > 1:
        power = b.mul(power, power)
        pairs: list[Operand] = [b.fma(power, high, low) for low, high in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[len(terms) - len(terms) % 2:]
    (total,) = terms
    return total if isinstance(total, ir.Value) else b.like(x, total)


def keep_tiny(b: Lanes, y: ir.Value, x: ir.Value, odd: bool = False) -> ir.Value:
    """`y`, or `x` where that is so small that f(x) = x + O(x^2), or x + O(x^3) where it is odd, rounds to it; keeps
    -0.0. A subnormal x goes through arithmetic, which flushes it."""
    mantissa = format_of(x).mantissa
    epsilon = 2.0 ** (-(mantissa // 2) - 2 if odd else -mantissa - 2)
    return b.select(b.gt(b.fabs(x), epsilon), y, b.fma(x, 2.0 ** (-mantissa - 4), x))


def add_sign(b: Lanes, y: ir.Value, x: ir.Value) -> ir.Value:
    """`y` with its sign bit set where that of `x` is: restores -0.0 in an odd function for two instructions."""
    sign = b.and_(b.bits(x), format_of(x).sign_bit)
    return b.float_of_bits(b.or_(b.bits(y), sign))


def flip_sign(b: Lanes, y: ir.Value, x: ir.Value) -> ir.Value:
    """`y` negated where the sign bit of `x` is set."""
    sign = b.and_(b.bits(x), format_of(x).sign_bit)
    return b.float_of_bits(b.xor(b.bits(y), sign))


def add_exponent(b: Lanes, y: ir.Value, shifted: ir.Value) -> ir.Value:
    """y * 2^n by integer addition, where `shifted` is n << mantissa; y and the result must be normal numbers."""
    return b.float_of_bits(b.add(b.bits(y), shifted))


def round_to_integer(b: Lanes, x: ir.Value, scale: float) -> tuple[ir.Value, ir.Value]:
    """The integer n nearest to x * scale, as a float and as n << mantissa. Arbitrary where |n| exceeds 2^20."""
    f = format_of(x)
    magic = b.fma(x, scale, f.magic) if scale != 1.0 else b.add(x, f.magic)
    return b.sub(magic, f.magic), b.shl(b.bits(magic), f.mantissa)


def split_exponent(b: Lanes, x: ir.Value, lowest_bits: int) -> tuple[ir.Value, ir.Value, ir.Value]:
    """x = m * 2^e with m from the float whose bits are `lowest_bits` up to almost twice that; x positive and normal.

    Gives m, -e as a float, and -e << mantissa. The minus makes -e * -constant a negative zero where e is 0, so that
    adding it preserves the sign of a zero.
    """
    f = format_of(x)
    highest_bits = lowest_bits + (1 << f.mantissa) - 1
    bits = b.bits(x)
    distance = b.sub(highest_bits, bits)
    shifted = b.and_(distance, f.exponent_bits)
    minus_e = b.ashr(distance, f.mantissa)
    return b.float_of_bits(b.add(bits, shifted)), integer_as_float(b, minus_e), shifted


def integer_as_float(b: Lanes, n: ir.Value) -> ir.Value:
    """A small integer as a float of its width. AVX2 has no conversion from 64-bit integers: add it to a magic number's
    bits instead."""
    if t.bit_width(n.type) == 32:
        return b.to_float(n, t.F32)
    magic = FLOAT64.magic
    magic_bits = 0x4338000000000000
    return b.sub(b.float_of_bits(b.add(n, magic_bits)), magic)


def two_sum(b: Lanes, x: Operand, y: ir.Value) -> tuple[ir.Value, ir.Value]:
    """x + y as a rounded sum and its exact error (Knuth)."""
    total = b.add(x, y)
    y_part = b.sub(total, x)
    x_part = b.sub(total, y_part)
    return total, b.add(b.sub(x, x_part), b.sub(y, y_part))


def fast_two_sum(b: Lanes, x: Operand, y: ir.Value) -> tuple[ir.Value, ir.Value]:
    """x + y as a rounded sum and its exact error, where x is 0 or |x| >= |y| (Dekker)."""
    total = b.add(x, y)
    return total, b.sub(y, b.sub(total, x))


def two_product(b: Lanes, x: ir.Value, y: Operand) -> tuple[ir.Value, ir.Value]:
    """x * y as a rounded product and its exact error."""
    product = b.mul(x, y)
    return product, b.fma(x, y, b.neg(product))


def fma_in_parts(b: Lanes, x: ir.Value, y: ir.Value, z: ir.Value) -> tuple[ir.Value, ir.Value]:
    """x * y + z rounded, and its error, where |z| >= |x * y| or z is 0. Exact where the sum is half of z or more."""
    total = b.fma(x, y, z)
    return total, b.fma(x, y, b.sub(z, total))


def rough_inverse(b: Lanes, x: ir.Value) -> ir.Value:
    """1 / x within 6 percent, for a positive normal x below a quarter of the largest number, by an integer subtraction:
    enough to scale a correction in the last place. Large where x is 0."""
    return b.float_of_bits(b.sub(ROUGH_INVERSE[format_of(x).mantissa], b.bits(x)))
