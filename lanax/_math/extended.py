"""Larger helpers of the special functions: code that runs only where some lane needs it, and the reduction of huge
arguments modulo pi / 2. Knows no function by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from llvmlite import ir

from lanax._llvm import types as t
from lanax._llvm.lanes import Lanes
from lanax._math import common as c

#: The words of 2 / pi, most significant first; 37 bits of the first stand before its binary point.
TWO_OVER_PI = [
    0x000000000517CC1B, 0x727220A94FE13ABE, 0x8FA9A6EE06DB14AC, 0xC9E21C820FF28B1D, 0x5EF5DE2B0DB92371,
    0xD2126E9700324977, 0x504E8C90E7F0EF58, 0xE5894D39F74411AF, 0xA975DA24274CE381, 0x35A2FBF209CC8EB1,
    0xCC1A99CFA4E422FC, 0x5DEFC941D8FFC4BF, 0xFEF02CC07F79788C, 0x5AD05368FB69B3F6, 0x793E584DBA7A31FB,
    0x34F2FF516BA93DD6, 0x3F5F2F8BD9E839CF, 0xBC529497535FDAFD, 0x88FC6AE842B01982,
]
LOW_WORD = 0xFFFFFFFF
#: Stored exponent of the least double that `reduce_huge` takes: 2^17.
LEAST_EXPONENT = 1040
HALF_PI_HIGH, HALF_PI_LOW = 1.5707963267948966, 6.123233995736766e-17


def any_lane(b: Lanes, mask: ir.Value) -> ir.Value:
    """Whether `mask` holds in any lane: a scalar i1."""
    if not isinstance(mask.type, ir.VectorType):
        return mask
    bits = b.ir.bitcast(mask, ir.IntType(mask.type.count))
    return b.ir.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))


def where_rare(b: Lanes, mask: ir.Value, usual: Sequence[ir.Value],
               rare: Callable[[], Sequence[ir.Value]]) -> list[ir.Value]:
    """The values that `rare` emits in the lanes of `mask`, `usual` in the others. The code of `rare` is jumped over
    where no lane needs it; a lane's bits do not depend on that. Leaves the builder in the block after it."""
    before = b.ir.block
    inside = b.ir.append_basic_block("rare")
    after = b.ir.append_basic_block("usual")
    b.ir.cbranch(any_lane(b, mask), inside, after).set_weights([1, 1000])
    b.ir.position_at_end(inside)
    chosen = [b.select(mask, x, y) for x, y in zip(rare(), usual, strict=True)]
    end = b.ir.block
    b.ir.branch(after)
    b.ir.position_at_end(after)
    merged = []
    for x, y in zip(chosen, usual, strict=True):
        phi = b.ir.phi(y.type)
        phi.add_incoming(x, end)
        phi.add_incoming(y, before)
        merged.append(phi)
    return merged


def _window(b: Lanes, shift: ir.Value) -> list[ir.Value]:
    """The 192 bits of 2 / pi from bit `shift` (below 1024) on, as 32-bit limbs, most significant first."""
    words: list[ir.Value] = [b.like(shift, word) for word in TWO_OVER_PI]
    for step in (8, 4, 2, 1):
        far = b.ne(b.and_(shift, 64 * step), 0)
        words = [b.select(far, words[i + step], words[i]) for i in range(step + 3)]
    left = b.and_(shift, 63)
    right = b.xor(left, 63)
    limbs = []
    for high, low in itertools.pairwise(words):
        word = b.or_(b.shl(high, left), b.lshr(b.lshr(low, 1), right))
        limbs += [b.lshr(word, 32), b.and_(word, LOW_WORD)]
    return limbs


def _product(b: Lanes, mantissa: ir.Value, limbs: list[ir.Value]) -> list[ir.Value]:
    """Bits 64 to 191 of a 53-bit mantissa times six limbs, as four limbs, most significant first."""
    low, high = b.and_(mantissa, LOW_WORD), b.lshr(mantissa, 32)
    columns: list[list[ir.Value]] = [[] for _ in range(7)]
    for factor, first in ((low, 0), (high, 1)):
        for i, limb in enumerate(reversed(limbs)):
            if 1 <= i + first <= 5:
                part = b.mul(factor, limb)
                columns[i + first].append(b.and_(part, LOW_WORD))
                columns[i + first + 1].append(b.lshr(part, 32))
    out: list[ir.Value] = []
    carry = None
    for column in columns[2:6]:
        total = column[0] if carry is None else b.add(column[0], carry)
        for part in column[1:]:
            total = b.add(total, part)
        out.insert(0, b.and_(total, LOW_WORD))
        carry = b.lshr(total, 32)
    return out


def _reduce_double(b: Lanes, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """x = n pi/2 + r for a double x of at least 2^17 (Payne and Hanek): r in two parts, and n modulo 4 as i64.

    x is a 53-bit integer m times a power of 2; bits of 2/pi that give multiples of 4 are left out, so m times the next
    192 bits is n with 126 bits of fraction after it. Infinity gives NaN; smaller x arbitrary numbers.
    """
    bits = b.bits(x)
    exponent = b.lshr(bits, 52)
    shift = b.sub(b.select(b.lt(exponent, LEAST_EXPONENT), LEAST_EXPONENT, exponent), LEAST_EXPONENT)
    shift = b.and_(shift, 1023)
    mantissa = b.or_(b.and_(bits, (1 << 52) - 1), 1 << 52)
    top, *rest = _product(b, mantissa, _window(b, shift))
    n = b.lshr(b.add(top, 1 << 29), 30)
    fraction = [b.sub(top, b.shl(n, 30)), *rest]
    first, second, third, fourth = (
        b.mul(c.integer_as_float(b, limb), 2.0 ** -(30 + 32 * i)) for i, limb in enumerate(fraction)
    )
    high, error = c.fast_two_sum(b, first, second)
    high, low = c.fast_two_sum(b, high, b.add(error, b.add(third, fourth)))
    r, error = c.two_product(b, high, HALF_PI_HIGH)
    r_low = b.fma(high, HALF_PI_LOW, b.fma(low, HALF_PI_HIGH, error))
    return b.select(b.eq(x, c.INF), b.sub(x, x), r), r_low, n


def _reduce(b: Lanes, x: ir.Value) -> list[ir.Value]:
    if c.is_double(x):
        return list(_reduce_double(b, x))
    r, r_low, n = _reduce_double(b, b.resize_float(x, t.F64))
    high = b.resize_float(r, t.F32)
    low = b.add(b.sub(r, b.resize_float(high, t.F64)), r_low)
    return [high, b.resize_float(low, t.F32), b.resize_int(n, t.I32)]


def reduce_huge(b: Lanes, x: ir.Value) -> list[ir.Value]:
    """`x` of at least 2^17 modulo pi / 2: the rest in two parts and the quadrant, an integer. A call, not inline: it is
    long and rarely taken."""
    module = b.ir.module
    kind = t.element(x.type)
    count = x.type.count if isinstance(x.type, ir.VectorType) else 1
    name = f"lanax.reduce.{t.bit_width(x.type)}.{count}"
    function = module.globals.get(name)
    if function is None:
        result = ir.LiteralStructType([x.type, x.type, t.like(ir.IntType(t.bit_width(kind)), x.type)])
        function = ir.Function(module, ir.FunctionType(result, [x.type]), name)
        function.linkage = "internal"
        for attribute in ("noinline", "cold", "nounwind", "readnone"):
            function.attributes.add(attribute)
        inner = Lanes(ir.IRBuilder(function.append_basic_block()), count)
        value: ir.Value = ir.Constant(result, ir.Undefined)
        for i, part in enumerate(_reduce(inner, function.args[0])):
            value = inner.ir.insert_value(value, part, i)
        inner.ir.ret(value)
    call = b.ir.call(function, [x])
    return [b.ir.extract_value(call, i) for i in range(3)]
