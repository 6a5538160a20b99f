"""Operations on lane values. A value is an LLVM scalar (uniform over the batch) or a vector with one lane for each
example; every operation takes either, and Python numbers stand for constants. Floating-point operations are emitted
without fast-math flags: the bits do not depend on the number of lanes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from llvmlite import ir

from lanax._llvm import types as t

Number = int | float | bool
Operand = ir.Value | Number


def _type_name(type_: ir.Type) -> str:
    """The suffix by which LLVM names an intrinsic's overload: `v8f32`, `i64`."""
    kind = t.element(type_)
    bits = t.bit_width(type_)
    name = f"f{bits}" if t.is_float(kind) else f"i{bits}"
    return f"v{type_.count}{name}" if isinstance(type_, ir.VectorType) else name


def _is_absolute(x: ir.Value) -> bool:
    """Whether the sign bit of a float is seen to be clear: of an absolute value and of a constant."""
    if isinstance(x, ir.CallInstr):
        return x.callee.name.startswith("llvm.fabs.")
    value = number_of(x)
    return value is not None and math.copysign(1.0, value) > 0


def is_never_less_than_zero(x: ir.Value) -> bool:
    """Whether a float is seen to be at least zero, -0 or NaN: a root, an absolute value, and their sums, products and
    quotients."""
    if _is_absolute(x):
        return True
    if isinstance(x, ir.CallInstr):
        return x.callee.name.startswith("llvm.sqrt.")
    opname = x.opname if isinstance(x, ir.Instruction) else ""
    return opname in ("fadd", "fmul", "fdiv") and all(map(is_never_less_than_zero, x.operands))


def number_of(x: ir.Value) -> float | None:
    """The number that a constant, or every lane of one, is; None for anything else."""
    x = x.scalar if isinstance(x, Splat) else x
    return float(x.constant) if isinstance(x, ir.Constant) and isinstance(x.constant, int | float) else None


class Splat(ir.Constant):
    """A vector constant with one value in every lane, in the short form of LLVM's text."""

    def __init__(self, type_: ir.VectorType, scalar: ir.Constant):
        super().__init__(type_, scalar)
        self.scalar = scalar

    def _get_reference(self) -> str:
        return f"splat ({self.scalar})"


class Lanes:
    """Emits lane operations at the position of `ir`, an llvmlite `IRBuilder`; varying values have `lanes` lanes.

    Where `fast` is set, functions may leave out the steps that carry what rounding took: within 4 ULP.
    """

    fast = False

    def __init__(self, builder: ir.IRBuilder, lanes: int):
        self.ir = builder
        self.lanes = lanes

    # -- constants and shapes ------------------------------------------------------------------------------------
    def const(self, type_: ir.Type, value: Number) -> ir.Constant:
        """`value` as a constant of a scalar or vector type (in every lane)."""
        kind = t.element(type_)
        if t.is_float(kind):
            value = float(value)
            if isinstance(kind, ir.FloatType):  # round once here: llvmlite would refuse an inexact float32
                with np.errstate(over="ignore"):
                    value = float(np.float32(value))
        else:
            value = int(value)
            width = kind.width
            value = ((value + (1 << (width - 1))) & ((1 << width) - 1)) - (1 << (width - 1)) if width > 1 else value & 1
        scalar = ir.Constant(kind, value)
        return Splat(type_, scalar) if isinstance(type_, ir.VectorType) else scalar

    def like(self, x: ir.Value, value: Number) -> ir.Constant:
        """A constant of the type of `x`."""
        return self.const(x.type, value)

    def splat(self, x: ir.Value) -> ir.Value:
        """A scalar in all lanes; a varying value as it is. With one lane there is nothing to do."""
        if self.lanes == 1 or isinstance(x.type, ir.VectorType):
            return x
        return self._splat(x, self.lanes)

    def _splat(self, x: ir.Value, count: int) -> ir.Value:
        vector = ir.VectorType(x.type, count)
        if isinstance(x, ir.Constant):
            return Splat(vector, x)
        first = self.ir.insert_element(ir.Constant(vector, ir.Undefined), x, ir.Constant(t.I32, 0))
        zeros = Splat(ir.VectorType(t.I32, count), ir.Constant(t.I32, 0))
        return self.ir.shuffle_vector(first, ir.Constant(vector, ir.Undefined), zeros)

    def lane_ids(self, kind: ir.IntType = t.I64) -> ir.Value:
        """0, 1, 2, ... : the number of each lane."""
        if self.lanes == 1:
            return ir.Constant(kind, 0)
        return ir.Constant(ir.VectorType(kind, self.lanes), [ir.Constant(kind, i) for i in range(self.lanes)])

    def extract(self, x: ir.Value, lane: int | ir.Value) -> ir.Value:
        """One lane of `x` as a scalar; `x` itself where it is a scalar."""
        if not isinstance(x.type, ir.VectorType):
            return x
        return self.ir.extract_element(x, ir.Constant(t.I32, lane) if isinstance(lane, int) else lane)

    def insert(self, x: ir.Value, value: ir.Value, lane: int) -> ir.Value:
        """`x` with one lane replaced."""
        return self.ir.insert_element(x, value, ir.Constant(t.I32, lane))

    def shuffled(self, x: ir.Value, y: ir.Value, order: Sequence[int]) -> ir.Value:
        """The elements of two vectors, numbered on from the first to the second, in this order."""
        numbers = ir.Constant(ir.VectorType(t.I32, len(order)), [ir.Constant(t.I32, i) for i in order])
        return self.ir.shuffle_vector(x, y, numbers)

    def part(self, x: ir.Value, first: int, count: int) -> ir.Value:
        """Some elements of a vector."""
        return x if count == x.type.count else self.shuffled(x, x, range(first, first + count))

    def cut(self, x: ir.Value, parts: int) -> list[ir.Value]:
        """A vector in so many equal parts, in order; a scalar is in each."""
        if parts == 1 or not isinstance(x.type, ir.VectorType):
            return [x] * parts
        count = x.type.count // parts
        return [self.part(x, i * count, count) for i in range(parts)]

    def joined(self, parts: Sequence[ir.Value]) -> ir.Value:
        """Vectors end to end; their number is a power of two."""
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.shuffled(x, y, range(2 * x.type.count)) for x, y in pairs]
        return parts[0]

    def join(self, *operands: Operand) -> list[ir.Value]:
        """The operands as values of one width: numbers become constants; where one is a vector, all are."""
        width = next((x.type.count for x in operands if isinstance(x, ir.Value) and isinstance(x.type, ir.VectorType)),
                     None)
        kind = next(t.element(x.type) for x in operands if isinstance(x, ir.Value))
        out = []
        for x in operands:
            if not isinstance(x, ir.Value):
                out.append(self.const(kind if width is None else ir.VectorType(kind, width), x))
            elif width is not None and not isinstance(x.type, ir.VectorType):
                out.append(self._splat(x, width))
            else:
                out.append(x)
        return out

    def _widen(self, x: ir.Value, *others: ir.Value) -> ir.Value:
        """`x`, which may be of another kind than `others`, splat where one of them is a vector."""
        for other in others:
            if isinstance(other.type, ir.VectorType) and not isinstance(x.type, ir.VectorType):
                return self._splat(x, other.type.count)
        return x

    # -- intrinsics ----------------------------------------------------------------------------------------------
    def intrinsic(self, name: str, result: ir.Type, *args: ir.Value, overload: ir.Type | None = None) -> ir.Value:
        """A call of `llvm.<name>.<type>`, overloaded on `overload` (the result's type where not given)."""
        full = f"llvm.{name}.{_type_name(overload or result)}"
        module = self.ir.module
        function = module.globals.get(full)
        if function is None:
            function = ir.Function(module, ir.FunctionType(result, [a.type for a in args]), full)
        return self.ir.call(function, args)

    def _unary(self, name: str, x: ir.Value) -> ir.Value:
        return self.intrinsic(name, x.type, x)

    # -- arithmetic: floats and integers -------------------------------------------------------------------------
    def add(self, x: Operand, y: Operand) -> ir.Value:
        x, y = self.join(x, y)
        return self.ir.fadd(x, y) if t.is_float(x.type) else self.ir.add(x, y)

    def sub(self, x: Operand, y: Operand) -> ir.Value:
        x, y = self.join(x, y)
        return self.ir.fsub(x, y) if t.is_float(x.type) else self.ir.sub(x, y)

    def mul(self, x: Operand, y: Operand) -> ir.Value:
        x, y = self.join(x, y)
        return self.ir.fmul(x, y) if t.is_float(x.type) else self.ir.mul(x, y)

    def neg(self, x: ir.Value) -> ir.Value:
        return self.ir.fneg(x) if t.is_float(x.type) else self.ir.neg(x)

    # -- floats --------------------------------------------------------------------------------------------------
    def div(self, x: Operand, y: Operand) -> ir.Value:
        """Floating-point division."""
        x, y = self.join(x, y)
        return self.ir.fdiv(x, y)

    def fma(self, x: Operand, y: Operand, z: Operand) -> ir.Value:
        """x * y + z, rounded once."""
        x, y, z = self.join(x, y, z)
        return self.intrinsic("fma", x.type, x, y, z)

    def fabs(self, x: ir.Value) -> ir.Value:
        return self._unary("fabs", x)

    def minimum(self, x: Operand, y: Operand) -> ir.Value:
        """The smaller one: NaN where either is, and -0 is less than 0.

        x86's own instruction gives its second operand for a NaN and for two zeros: the bits of both orders, joined, are
        right in three instructions, where LLVM needs six.
        """
        x, y = self.join(x, y)
        if not self._is_x86() or isinstance(x, ir.Constant) or isinstance(y, ir.Constant):
            return self.intrinsic("minimum", x.type, x, y)
        one, other = self.select(self.lt(x, y), x, y), self.select(self.lt(y, x), y, x)
        return self.float_of_bits(self.or_(self.bits(one), self.bits(other)))

    def maximum(self, x: Operand, y: Operand) -> ir.Value:
        """The larger one: NaN where either is, and 0 is more than -0. Absolute values are ordered as their bits."""
        x, y = self.join(x, y)
        if not (_is_absolute(x) and _is_absolute(y)):
            return self.intrinsic("maximum", x.type, x, y)
        x, y = self.bits(x), self.bits(y)
        return self.float_of_bits(self.select(self.compare(">", x, y), x, y))

    def _is_x86(self) -> bool:
        return self.ir.module.triple.startswith(("x86", "i686"))

    def sqrt(self, x: ir.Value) -> ir.Value:
        return self._unary("sqrt", x)

    def floor(self, x: ir.Value) -> ir.Value:
        return self._unary("floor", x)

    def ceil(self, x: ir.Value) -> ir.Value:
        return self._unary("ceil", x)

    def trunc(self, x: ir.Value) -> ir.Value:
        """Round towards zero, as a float."""
        return self._unary("trunc", x)

    def roundeven(self, x: ir.Value) -> ir.Value:
        """Round to nearest, ties to even, as a float."""
        return self._unary("roundeven", x)

    def copysign(self, magnitude: Operand, sign: Operand) -> ir.Value:
        magnitude, sign = self.join(magnitude, sign)
        return self.intrinsic("copysign", magnitude.type, magnitude, sign)

    def polynomial(self, x: ir.Value, coefficients: list[float]) -> ir.Value:
        """c[0] + c[1] x + c[2] x^2 + ..., by Horner's rule with FMAs."""
        total: Operand = coefficients[-1]
        for c in reversed(coefficients[:-1]):
            total = self.fma(total, x, c)
        return total if isinstance(total, ir.Value) else self.like(x, total)

    # -- bits ----------------------------------------------------------------------------------------------------
    def and_(self, x: Operand, y: Operand) -> ir.Value:
        return self.ir.and_(*self.join(x, y))

    def or_(self, x: Operand, y: Operand) -> ir.Value:
        return self.ir.or_(*self.join(x, y))

    def xor(self, x: Operand, y: Operand) -> ir.Value:
        return self.ir.xor(*self.join(x, y))

    def not_(self, x: ir.Value) -> ir.Value:
        return self.xor(x, -1 if t.bit_width(x.type) > 1 else 1)

    def shl(self, x: Operand, y: Operand) -> ir.Value:
        """x << y; undefined where y is not in [0, width)."""
        return self.ir.shl(*self.join(x, y))

    def lshr(self, x: Operand, y: Operand) -> ir.Value:
        """Logical x >> y; undefined where y is not in [0, width)."""
        return self.ir.lshr(*self.join(x, y))

    def ashr(self, x: Operand, y: Operand) -> ir.Value:
        """Arithmetic x >> y; undefined where y is not in [0, width)."""
        return self.ir.ashr(*self.join(x, y))

    # -- comparison and selection --------------------------------------------------------------------------------
    def compare(self, op: str, x: Operand, y: Operand, signed: bool = True) -> ir.Value:
        """`op` is one of == != < <= > >=; false on NaN, but for != which is true. Gives i1 lanes."""
        x, y = self.join(x, y)
        if t.is_float(x.type):
            return self.ir.fcmp_unordered(op, x, y) if op == "!=" else self.ir.fcmp_ordered(op, x, y)
        return self.ir.icmp_signed(op, x, y) if signed else self.ir.icmp_unsigned(op, x, y)

    def eq(self, x: Operand, y: Operand) -> ir.Value:
        return self.compare("==", x, y)

    def ne(self, x: Operand, y: Operand) -> ir.Value:
        return self.compare("!=", x, y)

    def lt(self, x: Operand, y: Operand) -> ir.Value:
        return self.compare("<", x, y)

    def le(self, x: Operand, y: Operand) -> ir.Value:
        return self.compare("<=", x, y)

    def gt(self, x: Operand, y: Operand) -> ir.Value:
        return self.compare(">", x, y)

    def ge(self, x: Operand, y: Operand) -> ir.Value:
        return self.compare(">=", x, y)

    def isnan(self, x: ir.Value) -> ir.Value:
        return self.ir.fcmp_unordered("uno", x, x)

    def select(self, condition: ir.Value, x: Operand, y: Operand) -> ir.Value:
        """x where `condition` (i1 lanes), else y."""
        x, y = self.join(x, y)
        if isinstance(condition.type, ir.VectorType) and not isinstance(x.type, ir.VectorType):
            x, y = self._splat(x, condition.type.count), self._splat(y, condition.type.count)
        if x is y:
            return x
        return self.ir.select(self._widen(condition, x), x, y)  # of vectors by a scalar, x86 makes a branch

    # -- conversion ----------------------------------------------------------------------------------------------
    def bits(self, x: ir.Value) -> ir.Value:
        """The bits of a float as an integer of its width."""
        return self.ir.bitcast(x, t.like(ir.IntType(t.bit_width(x.type)), x.type))

    def float_of_bits(self, x: ir.Value) -> ir.Value:
        """The float of an integer's width with these bits."""
        return self.ir.bitcast(x, t.like({16: t.F16, 32: t.F32, 64: t.F64}[t.bit_width(x.type)], x.type))

    def to_int(self, x: ir.Value, kind: ir.IntType, signed: bool = True) -> ir.Value:
        """A float as an integer, towards zero; undefined out of range."""
        type_ = t.like(kind, x.type)
        return self.ir.fptosi(x, type_) if signed else self.ir.fptoui(x, type_)

    def to_float(self, x: ir.Value, kind: ir.Type, signed: bool = True) -> ir.Value:
        """An integer as a float, to nearest."""
        type_ = t.like(kind, x.type)
        return self.ir.sitofp(x, type_) if signed else self.ir.uitofp(x, type_)

    def resize_float(self, x: ir.Value, kind: ir.Type) -> ir.Value:
        """A float as a wider or narrower float."""
        have, want = t.bit_width(x.type), t.bit_width(kind)
        type_ = t.like(kind, x.type)
        if have == want:
            return x
        return self.ir.fpext(x, type_) if have < want else self.ir.fptrunc(x, type_)

    def resize_int(self, x: ir.Value, kind: ir.IntType, signed: bool = True) -> ir.Value:
        """An integer as a wider or narrower integer."""
        have = t.bit_width(x.type)
        type_ = t.like(kind, x.type)
        if have == kind.width:
            return x
        if have > kind.width:
            return self.ir.trunc(x, type_)
        return self.ir.sext(x, type_) if signed else self.ir.zext(x, type_)
