; Runs a kernel for XLA: splits the examples into chunks and shares them with XLA's own thread pool.
;
; It follows xla/ffi/api/c_api.h, API version 0.3 and later minor versions, on 64-bit machines. One copy serves every
; kernel of the process. kernels.ll and threads.ll are appended, and files of the processor's and the system's own.

; ---- XLA's structs -----------------------------------------------------------------------------------------------

; size and extensions stand at the head of every struct
; ..., api, context, stage, arguments, results, attributes
%call_frame = type { i64, ptr, ptr, ptr, i32, %values, %values, %attributes }
%values = type { i64, ptr, i64, ptr, ptr }                         ; ..., count, kinds, items
%attributes = type { i64, ptr, i64, ptr, ptr, ptr }                ; ..., count, kinds, names, items
%scalar = type { i32, ptr }                                        ; dtype, value
%buffer = type { i64, ptr, i32, ptr, i64, ptr }                    ; ..., dtype, data, rank, dims
%api = type { i64, ptr, %version, ptr, [18 x ptr] }                ; ..., version, internal, functions
%version = type { i64, ptr, i32, i32 }                             ; ..., major, minor
%extension = type { i64, i32, ptr, ptr }                           ; size, kind, next, metadata (of kind 1)
%metadata = type { i64, %version, i32, i64 }                       ; size, version, traits, type of the state
%error_create = type { i64, ptr, ptr, i32 }                        ; ..., message, code
%error_destroy = type { i64, ptr, ptr }                            ; ..., error
%schedule = type { i64, ptr, ptr, ptr, ptr }                       ; ..., context, task, data
%num_threads = type { i64, ptr, ptr, ptr }                         ; ..., context, result
%state = type { i64, ptr, ptr, i32, ptr, ptr }                     ; ..., context, stage, type, state
%type_info = type { i64, ptr, ptr }                                ; ..., deleter

; ---- our structs -------------------------------------------------------------------------------------------------

; What ffi.Descriptor packs; the numbers are the fields' indices.
;   0 kernel: void (ptr buffers, i64 begin, i64 end, i64 axis_size, ptr scratch)
;   1 arguments  2 results  3 bytes of scratch for each thread
;   4 the argument and 5 the dimension of it that have the batch's size
;   6 lanes  7 chunk (0: automatic)  8 threads at most (0: all)  9 grain: examples worth another thread
;   10 chunks for each thread, where the chunk is automatic
%descriptor = type { ptr, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64 }

; A kernel of this process: its number, references (atomic), the next in the list, its descriptor.
%kernel = type { i64, i64, ptr, %descriptor }

; A call that several threads share. It is freed with the last reference: a task may start after the call returned.
;   0 references  1 next chunk to claim  2 chunks done (these three atomic)
;   3 chunks  4 examples in a chunk  5 axis_size  6 kernel  7 bytes of scratch  8 floating-point mode
;   9 threads that may join it yet  10 the next call that may be joined (these two under the lock of threads.ll)
;   11 buffers
%call = type { i64, i64, i64, i64, i64, i64, ptr, i64, i32, i64, ptr, [0 x ptr] }

@out_of_memory = private constant [56 x i8] c"lanax: out of memory for the scratch of a kernel's call\00"
@wrong_count = private constant [68 x i8] c"lanax: a kernel was called with a wrong number of arguments/results\00"

; Calls that run right now, on all devices, and threads that work on them (both atomic); the cores that they share, which
; Python sets.
@running = internal global i64 0
@working = internal global i64 0
@lanax_cores = global i64 9223372036854775807

declare ptr @malloc(i64)
declare void @free(ptr)
declare i32 @sched_yield()
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)

; ---- the handler -------------------------------------------------------------------------------------------------

; Returns null or an XLA error.
define ptr @lanax_execute(ptr %frame) {
entry:
  %asks = call i1 @answer_metadata(ptr %frame)
  br i1 %asks, label %answered, label %find

answered:
  ret ptr null

find:
  %state = alloca ptr
  %lost = call ptr @get_state(ptr %frame, ptr %state)
  %found = icmp eq ptr %lost, null
  br i1 %found, label %count, label %no_state

no_state:
  ret ptr %lost

count:
  %kernel = load ptr, ptr %state
  %descriptor = getelementptr %kernel, ptr %kernel, i64 0, i32 3
  %args_at = getelementptr %call_frame, ptr %frame, i64 0, i32 5, i32 2
  %args = load i64, ptr %args_at
  %rets_at = getelementptr %call_frame, ptr %frame, i64 0, i32 6, i32 2
  %rets = load i64, ptr %rets_at
  %want_args = call i64 @field(ptr %descriptor, i64 1)
  %want_rets = call i64 @field(ptr %descriptor, i64 2)
  %args_fit = icmp eq i64 %args, %want_args
  %rets_fit = icmp eq i64 %rets, %want_rets
  %fit = and i1 %args_fit, %rets_fit
  br i1 %fit, label %size, label %misfit

misfit:                                           ; code 3: INVALID_ARGUMENT
  %wrong = call ptr @error(ptr %frame, ptr @wrong_count, i32 3)
  ret ptr %wrong

size:
  %n = call i64 @axis_size(ptr %frame, ptr %descriptor)
  %empty = icmp sle i64 %n, 0
  br i1 %empty, label %answered, label %allocate

allocate:                                         ; before anything is shared, so that nothing need be taken back
  %scratch_size = call i64 @field(ptr %descriptor, i64 3)
  %memory = call ptr @allocate_scratch(i64 %scratch_size)
  %failed = icmp eq ptr %memory, null
  br i1 %failed, label %no_memory, label %run

no_memory:                                        ; code 8: RESOURCE_EXHAUSTED
  %exhausted = call ptr @error(ptr %frame, ptr @out_of_memory, i32 8)
  ret ptr %exhausted

run:
  call void @ask_for_large_pages(ptr %frame)
  %mode = call i32 @fp_mode()
  %kernel_mode = call i32 @flush_mode(i32 %mode)
  call void @set_fp_mode(i32 %kernel_mode)
  %scratch = call ptr @align(ptr %memory)
  %grain = call i64 @field(ptr %descriptor, i64 9)
  %before = atomicrmw add ptr @working, i64 1 monotonic
  %others = atomicrmw add ptr @running, i64 1 monotonic
  %calls = add i64 %others, 1
  %most = call i64 @most_threads(ptr %frame, ptr %descriptor, i64 %n, i64 %grain)
  %sharing = call i64 @sharing(ptr %frame, i64 %calls)
  %chunk = call i64 @choose_chunk(ptr %descriptor, i64 %n, i64 %most, i64 %grain, i64 %sharing)
  %chunks = call i64 @ceil_div(i64 %n, i64 %chunk)
  %used = call i64 @llvm.smin.i64(i64 %most, i64 %chunks)
  %many = icmp sgt i64 %used, 1
  br i1 %many, label %shared, label %alone

shared:
  %threads = call i64 @first_threads(i64 %used, i64 %calls)
  %later = sub i64 %used, %threads
  %call = call ptr @new_call(ptr %frame, ptr %descriptor, i64 %threads, i64 %later, i64 %chunks, i64 %chunk, i64 %n,
                             i32 %kernel_mode)
  %unshared = icmp eq ptr %call, null
  br i1 %unshared, label %alone, label %together

together:
  call void @open_call(ptr %call, i64 %later)
  call void @schedule_tasks(ptr %frame, ptr %call, i64 %threads)
  call void @run_chunks(ptr %call, ptr %scratch)
  call void @close_call(ptr %call, i64 %later)
  call void @wait(ptr %call)
  call void @release(ptr %call)
  br label %finish

alone:
  call void @run_alone(ptr %frame, ptr %descriptor, i64 %n, ptr %scratch)
  br label %finish

finish:
  %were_running = atomicrmw sub ptr @running, i64 1 monotonic
  %were_working = atomicrmw sub ptr @working, i64 1 monotonic
  call void @set_fp_mode(i32 %mode)
  call void @free(ptr %memory)
  call void @send_help(ptr %frame)
  ret ptr null
}

; ---- locks, for a few instructions at a time ---------------------------------------------------------------------

define internal void @lock(ptr %lock) alwaysinline {
entry:
  br label %try

try:
  %before = atomicrmw xchg ptr %lock, i32 1 acquire
  %ours = icmp eq i32 %before, 0
  br i1 %ours, label %done, label %wait

wait:
  %ignored = call i32 @sched_yield()
  br label %try

done:
  ret void
}

define internal void @unlock(ptr %lock) alwaysinline {
  store atomic i32 0, ptr %lock release, align 4
  ret void
}

; ---- XLA's first call --------------------------------------------------------------------------------------------

; XLA's first call of a handler asks for its version: whether this is such a call.
define internal i1 @answer_metadata(ptr %frame) alwaysinline {
entry:
  %first_at = getelementptr %call_frame, ptr %frame, i64 0, i32 1
  %first = load ptr, ptr %first_at
  br label %look

look:
  %extension = phi ptr [ %first, %entry ], [ %next, %other ]
  %end = icmp eq ptr %extension, null
  br i1 %end, label %no, label %kind

kind:
  %kind_at = getelementptr %extension, ptr %extension, i64 0, i32 1
  %kind_is = load i32, ptr %kind_at
  %found = icmp eq i32 %kind_is, 1
  br i1 %found, label %yes, label %other

other:
  %next_at = getelementptr %extension, ptr %extension, i64 0, i32 2
  %next = load ptr, ptr %next_at
  br label %look

yes:
  %metadata_at = getelementptr %extension, ptr %extension, i64 0, i32 3
  %metadata = load ptr, ptr %metadata_at
  %major_at = getelementptr %metadata, ptr %metadata, i64 0, i32 1, i32 2
  store i32 0, ptr %major_at
  %minor_at = getelementptr %metadata, ptr %metadata, i64 0, i32 1, i32 3
  store i32 3, ptr %minor_at
  %traits_at = getelementptr %metadata, ptr %metadata, i64 0, i32 2
  store i32 0, ptr %traits_at
  %type_at = getelementptr %metadata, ptr %metadata, i64 0, i32 3
  %type = load i64, ptr @lanax_state_type
  store i64 %type, ptr %type_at
  ret i1 true

no:
  ret i1 false
}

define internal i64 @field(ptr %descriptor, i64 %index) alwaysinline {
  %at = getelementptr i64, ptr %descriptor, i64 %index
  %value = load i64, ptr %at
  ret i64 %value
}

define internal i64 @axis_size(ptr %frame, ptr %descriptor) alwaysinline {
  %args_at = getelementptr %call_frame, ptr %frame, i64 0, i32 5, i32 4
  %args = load ptr, ptr %args_at
  %index = call i64 @field(ptr %descriptor, i64 4)
  %arg_at = getelementptr ptr, ptr %args, i64 %index
  %arg = load ptr, ptr %arg_at
  %dims_at = getelementptr %buffer, ptr %arg, i64 0, i32 5
  %dims = load ptr, ptr %dims_at
  %dim = call i64 @field(ptr %descriptor, i64 5)
  %size_at = getelementptr i64, ptr %dims, i64 %dim
  %size = load i64, ptr %size_at
  ret i64 %size
}

; ---- what the call frame holds -----------------------------------------------------------------------------------

; The data of arguments, then of results.
define internal void @list_buffers(ptr %frame, ptr %buffers) alwaysinline {
  %args_at = getelementptr %call_frame, ptr %frame, i64 0, i32 5
  call void @list_data(ptr %args_at, ptr %buffers)
  %args_count_at = getelementptr %values, ptr %args_at, i64 0, i32 2
  %args = load i64, ptr %args_count_at
  %after = getelementptr ptr, ptr %buffers, i64 %args
  %rets_at = getelementptr %call_frame, ptr %frame, i64 0, i32 6
  call void @list_data(ptr %rets_at, ptr %after)
  ret void
}

define internal void @list_data(ptr %values, ptr %list) alwaysinline {
entry:
  %count_at = getelementptr %values, ptr %values, i64 0, i32 2
  %count = load i64, ptr %count_at
  %items_at = getelementptr %values, ptr %values, i64 0, i32 4
  %items = load ptr, ptr %items_at
  br label %test

test:
  %i = phi i64 [ 0, %entry ], [ %next, %item ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %item, label %done

item:
  %item_at = getelementptr ptr, ptr %items, i64 %i
  %buffer = load ptr, ptr %item_at
  %data_at = getelementptr %buffer, ptr %buffer, i64 0, i32 3
  %data = load ptr, ptr %data_at
  %slot = getelementptr ptr, ptr %list, i64 %i
  store ptr %data, ptr %slot
  %next = add i64 %i, 1
  br label %test

done:
  ret void
}

; ---- XLA's functions ---------------------------------------------------------------------------------------------

define internal ptr @context(ptr %frame) alwaysinline {
  %at = getelementptr %call_frame, ptr %frame, i64 0, i32 3
  %context = load ptr, ptr %at
  ret ptr %context
}

; 0 Error_Create, 2 Error_Destroy, 7 State_Set, 8 State_Get, 11 ThreadPool_Schedule, 12 ThreadPool_NumThreads.
define internal ptr @api_function(ptr %frame, i64 %index) alwaysinline {
  %api_at = getelementptr %call_frame, ptr %frame, i64 0, i32 2
  %api = load ptr, ptr %api_at
  %at = getelementptr %api, ptr %api, i64 0, i32 4, i64 %index
  %function = load ptr, ptr %at
  ret ptr %function
}

define internal ptr @error(ptr %frame, ptr %message, i32 %code) alwaysinline {
  %request = alloca %error_create
  store i64 28, ptr %request
  %extension_at = getelementptr %error_create, ptr %request, i64 0, i32 1
  store ptr null, ptr %extension_at
  %message_at = getelementptr %error_create, ptr %request, i64 0, i32 2
  store ptr %message, ptr %message_at
  %code_at = getelementptr %error_create, ptr %request, i64 0, i32 3
  store i32 %code, ptr %code_at
  %create = call ptr @api_function(ptr %frame, i64 0)
  %error = call ptr %create(ptr %request)
  ret ptr %error
}

define internal void @destroy_error(ptr %frame, ptr %error) alwaysinline {
  %request = alloca %error_destroy
  store i64 24, ptr %request
  %extension_at = getelementptr %error_destroy, ptr %request, i64 0, i32 1
  store ptr null, ptr %extension_at
  %error_at = getelementptr %error_destroy, ptr %request, i64 0, i32 2
  store ptr %error, ptr %error_at
  %destroy = call ptr @api_function(ptr %frame, i64 2)
  call void %destroy(ptr %request)
  ret void
}
