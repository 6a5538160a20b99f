; What handler.ll needs of a 64-bit ARM processor: the floating-point mode is the FPCR register.

declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
declare void @llvm.aarch64.hint(i32)

define internal i32 @fp_mode() alwaysinline {
  %register = call i64 @llvm.aarch64.get.fpcr()
  %mode = trunc i64 %register to i32
  ret i32 %mode
}

define internal void @set_fp_mode(i32 %mode) alwaysinline {
  %register = zext i32 %mode to i64
  call void @llvm.aarch64.set.fpcr(i64 %register)
  ret void
}

; `mode` with flush-to-zero (bit 24), as in XLA's own code.
define internal i32 @flush_mode(i32 %mode) alwaysinline {
  %flushing = or i32 %mode, 16777216
  ret i32 %flushing
}

define internal void @pause() alwaysinline {
  call void @llvm.aarch64.hint(i32 1)
  ret void
}
