; What XLA calls: gives the shared routine its kernel's descriptor. Compiled once and linked once for each kernel, so
; that each has its own two globals, which ffi.py fills in.

@lanax_descriptor = global [10 x i64] zeroinitializer
@lanax_routine = global ptr null

define ptr @lanax_handler(ptr %frame) {
  %routine = load ptr, ptr @lanax_routine
  %error = tail call ptr %routine(ptr %frame, ptr @lanax_descriptor)
  ret ptr %error
}
