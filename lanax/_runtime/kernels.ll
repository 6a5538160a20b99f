; The part of the handler that is about which kernel a custom call means, and how long that must stay. handler.ll has the
; types.
;
; A custom call has one attribute, the kernel's number. When XLA builds an executable it calls @lanax_instantiate for each
; custom call in it. That looks the kernel up, counts a reference, and leaves it with XLA as the call's state; XLA gives
; it back, to @lanax_release, when it destroys the executable, which it does not do while one of its calls is running.
; So a kernel without references cannot be called, and ffi.py may free it.

@kernels = internal global ptr null
@kernels_lock = internal global i32 0

; XLA's number for the type of such a state, and what XLA must know of it. ffi.py registers it.
@lanax_state_type = global i64 0
@lanax_state_info = global %type_info { i64 24, ptr null, ptr @lanax_release }

@no_kernel = private constant [67 x i8] c"lanax: a program calls a kernel that this process has not compiled\00"

define void @lanax_add(ptr %kernel) {
  call void @lock(ptr @kernels_lock)
  %next = load ptr, ptr @kernels
  %next_at = getelementptr %kernel, ptr %kernel, i64 0, i32 2
  store ptr %next, ptr %next_at
  store ptr %kernel, ptr @kernels
  call void @unlock(ptr @kernels_lock)
  ret void
}

; Takes a kernel off the list, unless it has references: whether it did.
define i32 @lanax_remove(ptr %kernel) {
entry:
  call void @lock(ptr @kernels_lock)
  %references_at = getelementptr %kernel, ptr %kernel, i64 0, i32 1
  %references = load atomic i64, ptr %references_at acquire, align 8
  %free = icmp eq i64 %references, 0
  br i1 %free, label %look, label %done

look:
  %at = phi ptr [ @kernels, %entry ], [ %next_at, %other ]
  %here = load ptr, ptr %at
  %found = icmp eq ptr %here, %kernel
  %next_at = getelementptr %kernel, ptr %here, i64 0, i32 2
  br i1 %found, label %take, label %other

other:
  %end = icmp eq ptr %here, null
  br i1 %end, label %done, label %look

take:
  %next = load ptr, ptr %next_at
  store ptr %next, ptr %at
  br label %done

done:
  %removed = phi i32 [ 0, %entry ], [ 0, %other ], [ 1, %take ]
  call void @unlock(ptr @kernels_lock)
  ret i32 %removed
}

; The kernel of this number, with one more reference; null where there is none.
define internal ptr @retain(i64 %number) alwaysinline {
entry:
  call void @lock(ptr @kernels_lock)
  br label %look

look:
  %at = phi ptr [ @kernels, %entry ], [ %next_at, %other ]
  %here = load ptr, ptr %at
  %end = icmp eq ptr %here, null
  br i1 %end, label %done, label %compare

compare:
  %number_here = load i64, ptr %here
  %found = icmp eq i64 %number_here, %number
  br i1 %found, label %take, label %other

other:
  %next_at = getelementptr %kernel, ptr %here, i64 0, i32 2
  br label %look

take:
  %references_at = getelementptr %kernel, ptr %here, i64 0, i32 1
  %before = atomicrmw add ptr %references_at, i64 1 monotonic
  br label %done

done:
  %kernel = phi ptr [ null, %look ], [ %here, %take ]
  call void @unlock(ptr @kernels_lock)
  ret ptr %kernel
}

; XLA destroys the state of a call. The kernel's code is not touched after this.
define void @lanax_release(ptr %kernel) {
  %references_at = getelementptr %kernel, ptr %kernel, i64 0, i32 1
  %before = atomicrmw sub ptr %references_at, i64 1 release
  ret void
}

; XLA builds an executable. Returns null or an XLA error.
define ptr @lanax_instantiate(ptr %frame) {
entry:
  %asks = call i1 @answer_metadata(ptr %frame)
  br i1 %asks, label %answered, label %find

answered:
  ret ptr null

find:
  %number = call i64 @kernel_number(ptr %frame)
  %kernel = call ptr @retain(i64 %number)
  %unknown = icmp eq ptr %kernel, null
  br i1 %unknown, label %fail, label %keep

fail:                                             ; code 5: NOT_FOUND
  %error = call ptr @error(ptr %frame, ptr @no_kernel, i32 5)
  ret ptr %error

keep:
  %state = alloca ptr
  store ptr %kernel, ptr %state
  %refused = call ptr @exchange_state(ptr %frame, ptr %state, i64 7)
  %kept = icmp eq ptr %refused, null
  br i1 %kept, label %answered, label %give_back

give_back:
  call void @lanax_release(ptr %kernel)
  ret ptr %refused
}

; The call's one attribute; 0, which no kernel has, where it has another number of them.
define internal i64 @kernel_number(ptr %frame) alwaysinline {
entry:
  %attributes = getelementptr %call_frame, ptr %frame, i64 0, i32 7
  %count_at = getelementptr %attributes, ptr %attributes, i64 0, i32 2
  %count = load i64, ptr %count_at
  %one = icmp eq i64 %count, 1
  br i1 %one, label %read, label %done

read:
  %items_at = getelementptr %attributes, ptr %attributes, i64 0, i32 5
  %items = load ptr, ptr %items_at
  %scalar = load ptr, ptr %items
  %value_at = getelementptr %scalar, ptr %scalar, i64 0, i32 1
  %value = load ptr, ptr %value_at
  %given = load i64, ptr %value
  br label %done

done:
  %number = phi i64 [ 0, %entry ], [ %given, %read ]
  ret i64 %number
}

; Writes the kernel of a call to %state.
define internal ptr @get_state(ptr %frame, ptr %state) alwaysinline {
  %error = call ptr @exchange_state(ptr %frame, ptr %state, i64 8)
  ret ptr %error
}

; State_Set (7) or State_Get (8) with what %state points to.
define internal ptr @exchange_state(ptr %frame, ptr %state, i64 %function) alwaysinline {
  %request = alloca %state
  store i64 48, ptr %request
  %extension_at = getelementptr %state, ptr %request, i64 0, i32 1
  store ptr null, ptr %extension_at
  %context = call ptr @context(ptr %frame)
  %context_at = getelementptr %state, ptr %request, i64 0, i32 2
  store ptr %context, ptr %context_at
  %stage_at = getelementptr %state, ptr %request, i64 0, i32 3
  store i32 0, ptr %stage_at                      ; the state of the stage INSTANTIATE
  %type_at = getelementptr %state, ptr %request, i64 0, i32 4
  store ptr @lanax_state_type, ptr %type_at
  %value_at = getelementptr %state, ptr %request, i64 0, i32 5
  %given = load ptr, ptr %state
  store ptr %given, ptr %value_at
  %exchange = call ptr @api_function(ptr %frame, i64 %function)
  %error = call ptr %exchange(ptr %request)
  %value = load ptr, ptr %value_at
  store ptr %value, ptr %state
  ret ptr %error
}
