; What handler.ll needs of an x86 processor: the floating-point mode is the MXCSR register.

declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
declare void @llvm.x86.sse2.pause()

define internal i32 @fp_mode() alwaysinline {
  %slot = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %slot)
  %mode = load i32, ptr %slot
  ret i32 %mode
}

define internal void @set_fp_mode(i32 %mode) alwaysinline {
  %slot = alloca i32
  store i32 %mode, ptr %slot
  call void @llvm.x86.sse.ldmxcsr(ptr %slot)
  ret void
}

; `mode` with flush-to-zero (0x8000) and denormals-are-zero (0x40), as in XLA's own code.
define internal i32 @flush_mode(i32 %mode) alwaysinline {
  %flushing = or i32 %mode, 32832
  ret i32 %flushing
}

define internal void @pause() alwaysinline {
  call void @llvm.x86.sse2.pause()
  ret void
}
