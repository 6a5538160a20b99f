; Where large pages cannot be asked for.

define internal void @ask_for_large_pages(ptr %frame) {
  ret void
}
