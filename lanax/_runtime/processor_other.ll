; What handler.ll needs of a processor that has no file of its own: the floating-point mode stays as it is.

define internal i32 @fp_mode() alwaysinline {
  ret i32 0
}

define internal void @set_fp_mode(i32 %mode) alwaysinline {
  ret void
}

define internal i32 @flush_mode(i32 %mode) alwaysinline {
  ret i32 %mode
}

define internal void @pause() alwaysinline {
  ret void
}
