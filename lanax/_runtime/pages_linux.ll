; Large results come as fresh memory, whose pages the kernel of the operating system makes one by one where they are first
; written. Asked for large pages it makes some hundreds at once: 36 MB of results took 9 ms instead of 53. Smaller results
; mostly lie in memory that the C library has kept; asking for those made calls up to twice as long.

declare i32 @madvise(ptr, i64, i32)

; Bytes of an element, by XLA's number of its dtype.
@item_bytes = private constant [19 x i8] c"\00\01\01\02\04\08\01\02\04\08\02\04\08\00\00\08\02\00\10"

define internal void @ask_for_large_pages(ptr %frame) {
entry:
  %rets_at = getelementptr %call_frame, ptr %frame, i64 0, i32 6
  %count_at = getelementptr %values, ptr %rets_at, i64 0, i32 2
  %count = load i64, ptr %count_at
  %items_at = getelementptr %values, ptr %rets_at, i64 0, i32 4
  %items = load ptr, ptr %items_at
  br label %test

test:
  %i = phi i64 [ 0, %entry ], [ %following, %next ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %result, label %done

result:
  %item_at = getelementptr ptr, ptr %items, i64 %i
  %buffer = load ptr, ptr %item_at
  %bytes = call i64 @buffer_bytes(ptr %buffer)
  %least = load i64, ptr @fresh_bytes             ; ffi.py says how many
  %large = icmp uge i64 %bytes, %least
  br i1 %large, label %ask, label %next

ask:                                              ; the whole pages of 2 MiB in it; 14 is MADV_HUGEPAGE
  %data_at = getelementptr %buffer, ptr %buffer, i64 0, i32 3
  %data = load ptr, ptr %data_at
  %begin = ptrtoint ptr %data to i64
  %end = add i64 %begin, %bytes
  %above = add i64 %begin, 2097151
  %first = and i64 %above, -2097152
  %last = and i64 %end, -2097152
  %length = sub i64 %last, %first
  %pages = inttoptr i64 %first to ptr
  %ignored = call i32 @madvise(ptr %pages, i64 %length, i32 14)
  br label %next

next:
  %following = add i64 %i, 1
  br label %test

done:
  ret void
}

; 0 for a dtype that has no number here.
define internal i64 @buffer_bytes(ptr %buffer) {
entry:
  %dtype_at = getelementptr %buffer, ptr %buffer, i64 0, i32 2
  %dtype = load i32, ptr %dtype_at
  %rank_at = getelementptr %buffer, ptr %buffer, i64 0, i32 4
  %rank = load i64, ptr %rank_at
  %dims_at = getelementptr %buffer, ptr %buffer, i64 0, i32 5
  %dims = load ptr, ptr %dims_at
  %known = icmp ult i32 %dtype, 19
  br i1 %known, label %item, label %unknown

item:
  %index = zext i32 %dtype to i64
  %bytes_at = getelementptr i8, ptr @item_bytes, i64 %index
  %one = load i8, ptr %bytes_at
  %bytes = zext i8 %one to i64
  br label %test

test:
  %i = phi i64 [ 0, %item ], [ %next, %dim ]
  %size = phi i64 [ %bytes, %item ], [ %larger, %dim ]
  %more = icmp slt i64 %i, %rank
  br i1 %more, label %dim, label %done

dim:
  %dim_at = getelementptr i64, ptr %dims, i64 %i
  %n = load i64, ptr %dim_at
  %larger = mul i64 %size, %n
  %next = add i64 %i, 1
  br label %test

done:
  ret i64 %size

unknown:
  ret i64 0
}
