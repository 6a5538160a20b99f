; The part of the handler that is about threads: how many, how large a chunk, who runs which. handler.ll has the types.

; ---- how many threads, how large a chunk -------------------------------------------------------------------------

define internal i64 @ceil_div(i64 %a, i64 %b) alwaysinline {
  %less = sub i64 %a, 1
  %quotient = sdiv i64 %less, %b
  %up = add i64 %quotient, 1
  ret i64 %up
}

; The threads that may work on a call: of XLA's pool, which has one for each device, however few cores there are.
define internal i64 @most_threads(ptr %frame, ptr %descriptor, i64 %n, i64 %grain) alwaysinline {
entry:
  %given = call i64 @field(ptr %descriptor, i64 8)
  %any = icmp eq i64 %given, 0
  %cap = select i1 %any, i64 9223372036854775807, i64 %given
  %grains = call i64 @ceil_div(i64 %n, i64 %grain)
  %want = call i64 @llvm.smin.i64(i64 %cap, i64 %grains)
  %several = icmp sgt i64 %want, 1
  br i1 %several, label %ask, label %one

one:
  ret i64 1

ask:
  %pool = call i64 @pool_threads(ptr %frame)
  %cores = load i64, ptr @lanax_cores
  %most = call i64 @llvm.smin.i64(i64 %pool, i64 %cores)
  %threads = call i64 @llvm.smin.i64(i64 %want, i64 %most)
  ret i64 %threads
}

; Those that it starts with. The pool serves the calls of all devices, so each call takes its part of the cores, and one
; at least.
define internal i64 @first_threads(i64 %most, i64 %calls) alwaysinline {
  %cores = load i64, ptr @lanax_cores
  %part = call i64 @ceil_div(i64 %cores, i64 %calls)
  %threads = call i64 @llvm.smin.i64(i64 %most, i64 %part)
  ret i64 %threads
}

; How many calls share the work, as far as one can tell: where others run, one for each device.
define internal i64 @sharing(ptr %frame, i64 %calls) alwaysinline {
entry:
  %several = icmp sgt i64 %calls, 1
  br i1 %several, label %ask, label %one

ask:
  %pool = call i64 @pool_threads(ptr %frame)
  %sharing = call i64 @llvm.smax.i64(i64 %calls, i64 %pool)
  ret i64 %sharing

one:
  ret i64 1
}

; About 32 chunks a thread, so that slow examples at the end cost a thirtieth at most, but no chunk so small that
; claiming it shows; a whole number of steps. Of several calls each has so many fewer, but two for each thread.
define internal i64 @choose_chunk(ptr %descriptor, i64 %n, i64 %threads, i64 %grain, i64 %sharing) alwaysinline {
  %given = call i64 @field(ptr %descriptor, i64 7)
  %lanes = call i64 @field(ptr %descriptor, i64 6)
  %each = call i64 @field(ptr %descriptor, i64 10)
  %half = sdiv i64 %each, 2
  %fewest = call i64 @llvm.smax.i64(i64 %half, i64 1)
  %all = call i64 @llvm.smin.i64(i64 %sharing, i64 %fewest)
  %of_all = mul i64 %n, %all
  %parts = mul i64 %threads, %each
  %even = sdiv i64 %of_all, %parts
  %least = sdiv i64 %grain, 8
  %fair = call i64 @llvm.smax.i64(i64 %even, i64 %least)
  %automatic = icmp eq i64 %given, 0
  %examples = select i1 %automatic, i64 %fair, i64 %given
  %some = call i64 @llvm.smax.i64(i64 %examples, i64 1)
  %bounded = call i64 @llvm.smin.i64(i64 %some, i64 %n)
  %steps = call i64 @ceil_div(i64 %bounded, i64 %lanes)
  %chunk = mul i64 %steps, %lanes
  ret i64 %chunk
}

; ---- memory ------------------------------------------------------------------------------------------------------

; Never null but on failure: a kernel without scratch gets a few bytes.
define internal ptr @allocate_scratch(i64 %size) alwaysinline {
  %room = add i64 %size, 64
  %memory = call ptr @malloc(i64 %room)
  ret ptr %memory
}

; The first multiple of 64 bytes.
define internal ptr @align(ptr %memory) alwaysinline {
  %start = ptrtoint ptr %memory to i64
  %past = add i64 %start, 63
  %aligned = and i64 %past, -64
  %scratch = inttoptr i64 %aligned to ptr
  ret ptr %scratch
}

; Null where there is no memory for it.
define internal ptr @new_call(ptr %frame, ptr %descriptor, i64 %threads, i64 %later, i64 %chunks, i64 %chunk, i64 %n,
                              i32 %mode) alwaysinline {
entry:
  %args = call i64 @field(ptr %descriptor, i64 1)
  %rets = call i64 @field(ptr %descriptor, i64 2)
  %buffer_count = add i64 %args, %rets
  %end = getelementptr %call, ptr null, i64 0, i32 11, i64 %buffer_count
  %size = ptrtoint ptr %end to i64
  %call = call ptr @malloc(i64 %size)
  %failed = icmp eq ptr %call, null
  br i1 %failed, label %done, label %fill

fill:
  %kernel = load ptr, ptr %descriptor
  %scratch = call i64 @field(ptr %descriptor, i64 3)
  %next_at = getelementptr %call, ptr %call, i64 0, i32 1
  %done_at = getelementptr %call, ptr %call, i64 0, i32 2
  %chunks_at = getelementptr %call, ptr %call, i64 0, i32 3
  %chunk_at = getelementptr %call, ptr %call, i64 0, i32 4
  %n_at = getelementptr %call, ptr %call, i64 0, i32 5
  %kernel_at = getelementptr %call, ptr %call, i64 0, i32 6
  %scratch_at = getelementptr %call, ptr %call, i64 0, i32 7
  %mode_at = getelementptr %call, ptr %call, i64 0, i32 8
  %later_at = getelementptr %call, ptr %call, i64 0, i32 9
  %buffers = getelementptr %call, ptr %call, i64 0, i32 11
  store i64 %threads, ptr %call
  store i64 0, ptr %next_at
  store i64 0, ptr %done_at
  store i64 %chunks, ptr %chunks_at
  store i64 %chunk, ptr %chunk_at
  store i64 %n, ptr %n_at
  store ptr %kernel, ptr %kernel_at
  store i64 %scratch, ptr %scratch_at
  store i32 %mode, ptr %mode_at
  store i64 %later, ptr %later_at
  call void @list_buffers(ptr %frame, ptr %buffers)
  br label %done

done:
  ret ptr %call
}

; ---- running -----------------------------------------------------------------------------------------------------

define internal void @run_alone(ptr %frame, ptr %descriptor, i64 %n, ptr %scratch) alwaysinline {
  %args = call i64 @field(ptr %descriptor, i64 1)
  %rets = call i64 @field(ptr %descriptor, i64 2)
  %count = add i64 %args, %rets
  %buffers = alloca ptr, i64 %count
  call void @list_buffers(ptr %frame, ptr %buffers)
  %kernel = load ptr, ptr %descriptor
  call void %kernel(ptr %buffers, i64 0, i64 %n, i64 %n, ptr %scratch)
  ret void
}

; Claims chunks until none is left.
define internal void @run_chunks(ptr %call, ptr %scratch) alwaysinline {
entry:
  %next_at = getelementptr %call, ptr %call, i64 0, i32 1
  %done_at = getelementptr %call, ptr %call, i64 0, i32 2
  %chunks_at = getelementptr %call, ptr %call, i64 0, i32 3
  %chunk_at = getelementptr %call, ptr %call, i64 0, i32 4
  %n_at = getelementptr %call, ptr %call, i64 0, i32 5
  %kernel_at = getelementptr %call, ptr %call, i64 0, i32 6
  %buffers = getelementptr %call, ptr %call, i64 0, i32 11
  %chunks = load i64, ptr %chunks_at
  %chunk = load i64, ptr %chunk_at
  %n = load i64, ptr %n_at
  %kernel = load ptr, ptr %kernel_at
  br label %claim

claim:
  %index = atomicrmw add ptr %next_at, i64 1 monotonic
  %left = icmp slt i64 %index, %chunks
  br i1 %left, label %run, label %done

run:
  %begin = mul i64 %index, %chunk
  %full_end = add i64 %begin, %chunk
  %end = call i64 @llvm.smin.i64(i64 %full_end, i64 %n)
  call void %kernel(ptr %buffers, i64 %begin, i64 %end, i64 %n, ptr %scratch)
  %before = atomicrmw add ptr %done_at, i64 1 release
  br label %claim

done:
  ret void
}

; Until all chunks are done. Every chunk is claimed by now, and whoever claimed one is running it, so this ends even
; where the pool is busy with calls like this one.
define internal void @wait(ptr %call) alwaysinline {
entry:
  %done_at = getelementptr %call, ptr %call, i64 0, i32 2
  %chunks_at = getelementptr %call, ptr %call, i64 0, i32 3
  %chunks = load i64, ptr %chunks_at
  br label %look

look:
  %turn = phi i64 [ 0, %entry ], [ %next, %spin ], [ %next, %yield ]
  %done = load atomic i64, ptr %done_at acquire, align 8
  %all = icmp eq i64 %done, %chunks
  br i1 %all, label %finish, label %again

again:
  %next = add i64 %turn, 1
  %soon = icmp slt i64 %turn, 256
  br i1 %soon, label %spin, label %yield

spin:
  call void @pause()
  br label %look

yield:
  %ignored = call i32 @sched_yield()
  br label %look

finish:
  ret void
}

; ---- the pool ----------------------------------------------------------------------------------------------------

; What XLA's pool runs: the chunks of a call, then those of calls that may be joined. Null: of the latter alone. A task that
; comes late, or that gets no memory, leaves the work to the others.
define internal void @task(ptr %given) {
entry:
  %before = atomicrmw add ptr @working, i64 1 monotonic
  %none = icmp eq ptr %given, null
  br i1 %none, label %look, label %work

work:
  %call = phi ptr [ %given, %entry ], [ %joined, %look ]
  call void @take_part(ptr %call)
  call void @release(ptr %call)
  br label %look

look:
  %joined = call ptr @join_call()
  %idle = icmp eq ptr %joined, null
  br i1 %idle, label %finish, label %work

finish:
  %were_working = atomicrmw sub ptr @working, i64 1 monotonic
  ret void
}

define internal void @take_part(ptr %call) alwaysinline {
entry:
  %left = call i1 @has_chunks(ptr %call)
  br i1 %left, label %allocate, label %finish

allocate:
  %scratch_at = getelementptr %call, ptr %call, i64 0, i32 7
  %size = load i64, ptr %scratch_at
  %memory = call ptr @allocate_scratch(i64 %size)
  %failed = icmp eq ptr %memory, null
  br i1 %failed, label %finish, label %run

run:
  %mode_at = getelementptr %call, ptr %call, i64 0, i32 8
  %mode = load i32, ptr %mode_at
  %own_mode = call i32 @fp_mode()
  call void @set_fp_mode(i32 %mode)
  %scratch = call ptr @align(ptr %memory)
  call void @run_chunks(ptr %call, ptr %scratch)
  call void @set_fp_mode(i32 %own_mode)
  call void @free(ptr %memory)
  br label %finish

finish:
  ret void
}

; Whether any is unclaimed.
define internal i1 @has_chunks(ptr %call) alwaysinline {
  %next_at = getelementptr %call, ptr %call, i64 0, i32 1
  %next = load atomic i64, ptr %next_at monotonic, align 8
  %chunks_at = getelementptr %call, ptr %call, i64 0, i32 3
  %chunks = load i64, ptr %chunks_at
  %left = icmp slt i64 %next, %chunks
  ret i1 %left
}

define internal void @release(ptr %call) alwaysinline {
entry:
  %references = atomicrmw sub ptr %call, i64 1 acq_rel
  %last = icmp eq i64 %references, 1
  br i1 %last, label %delete, label %done

delete:
  call void @free(ptr %call)
  br label %done

done:
  ret void
}

; One task for each thread but the caller. A task that the pool refuses gives its reference back.
define internal void @schedule_tasks(ptr %frame, ptr %call, i64 %threads) alwaysinline {
entry:
  br label %test

test:
  %i = phi i64 [ 1, %entry ], [ %next, %ask ], [ %next, %refused ]
  %left = icmp slt i64 %i, %threads
  br i1 %left, label %ask, label %done

ask:
  %next = add i64 %i, 1
  %accepted = call i1 @schedule_task(ptr %frame, ptr %call)
  br i1 %accepted, label %test, label %refused

refused:
  call void @release(ptr %call)
  br label %test

done:
  ret void
}

; Has the pool run a task: whether it will.
define internal i1 @schedule_task(ptr %frame, ptr %call) {
entry:
  %request = alloca %schedule
  %context = call ptr @context(ptr %frame)
  %schedule = call ptr @api_function(ptr %frame, i64 11)
  %extension_at = getelementptr %schedule, ptr %request, i64 0, i32 1
  %context_at = getelementptr %schedule, ptr %request, i64 0, i32 2
  %task_at = getelementptr %schedule, ptr %request, i64 0, i32 3
  %data_at = getelementptr %schedule, ptr %request, i64 0, i32 4
  store i64 40, ptr %request
  store ptr null, ptr %extension_at
  store ptr %context, ptr %context_at
  store ptr @task, ptr %task_at
  store ptr %call, ptr %data_at
  %error = call ptr %schedule(ptr %request)
  %accepted = icmp eq ptr %error, null
  br i1 %accepted, label %done, label %refused

refused:
  call void @destroy_error(ptr %frame, ptr %error)
  br label %done

done:
  ret i1 %accepted
}

; Threads of XLA's pool; 1 where there is no pool.
define internal i64 @pool_threads(ptr %frame) alwaysinline {
entry:
  %request = alloca %num_threads
  %count = alloca i64
  store i64 1, ptr %count
  store i64 32, ptr %request
  %extension_at = getelementptr %num_threads, ptr %request, i64 0, i32 1
  store ptr null, ptr %extension_at
  %context = call ptr @context(ptr %frame)
  %context_at = getelementptr %num_threads, ptr %request, i64 0, i32 2
  store ptr %context, ptr %context_at
  %result_at = getelementptr %num_threads, ptr %request, i64 0, i32 3
  store ptr %count, ptr %result_at
  %num_threads = call ptr @api_function(ptr %frame, i64 12)
  %error = call ptr %num_threads(ptr %request)
  %works = icmp eq ptr %error, null
  br i1 %works, label %pool, label %none

pool:
  %threads = load i64, ptr %count
  ret i64 %threads

none:
  call void @destroy_error(ptr %frame, ptr %error)
  ret i64 1
}

; ---- joining -----------------------------------------------------------------------------------------------------

; Calls that started with fewer threads than they may have, since others were running. Who has finished joins one of
; them, so that no core is idle while another has chunks left.
@open_calls = internal global ptr null
@open_calls_lock = internal global i32 0

define internal void @open_call(ptr %call, i64 %later) alwaysinline {
entry:
  %some = icmp sgt i64 %later, 0
  br i1 %some, label %add, label %done

add:
  call void @lock(ptr @open_calls_lock)
  %next = load ptr, ptr @open_calls
  %next_at = getelementptr %call, ptr %call, i64 0, i32 10
  store ptr %next, ptr %next_at
  store atomic ptr %call, ptr @open_calls monotonic, align 8
  call void @unlock(ptr @open_calls_lock)
  br label %done

done:
  ret void
}

; The call's own thread takes it off the list, where it is still there.
define internal void @close_call(ptr %call, i64 %later) alwaysinline {
entry:
  %opened = icmp sgt i64 %later, 0
  br i1 %opened, label %search, label %done

search:
  call void @lock(ptr @open_calls_lock)
  br label %look

look:
  %at = phi ptr [ @open_calls, %search ], [ %next_at, %other ]
  %here = load ptr, ptr %at
  %found = icmp eq ptr %here, %call
  br i1 %found, label %take, label %other

other:
  %next_at = getelementptr %call, ptr %here, i64 0, i32 10
  %end = icmp eq ptr %here, null
  br i1 %end, label %closed, label %look

take:
  call void @take_off(ptr %at)
  br label %closed

closed:
  call void @unlock(ptr @open_calls_lock)
  br label %done

done:
  ret void
}

; Takes the call off the list that a place of the list points to.
define internal void @take_off(ptr %at) alwaysinline {
  %call = load ptr, ptr %at
  %next_at = getelementptr %call, ptr %call, i64 0, i32 10
  %next = load ptr, ptr %next_at
  store atomic ptr %next, ptr %at monotonic, align 8
  ret void
}

; A call with chunks left, with a reference for the thread that joins it; null where there is none, or no idle core for
; this thread, which is counted.
define internal ptr @join_call() alwaysinline {
entry:
  %any = call i1 @may_join(i64 0)
  br i1 %any, label %try, label %none

try:
  call void @lock(ptr @open_calls_lock)
  br label %look

look:
  %here = load ptr, ptr @open_calls
  %end = icmp eq ptr %here, null
  br i1 %end, label %give_up, label %ask

ask:
  %left = call i1 @has_chunks(ptr %here)
  br i1 %left, label %join, label %over

over:                                             ; whoever asks next need not look at it
  call void @take_off(ptr @open_calls)
  br label %look

join:
  %later_at = getelementptr %call, ptr %here, i64 0, i32 9
  %later = load i64, ptr %later_at
  %fewer = sub i64 %later, 1
  store i64 %fewer, ptr %later_at
  %references = atomicrmw add ptr %here, i64 1 monotonic
  %full = icmp eq i64 %fewer, 0
  br i1 %full, label %last, label %give_up

last:
  call void @take_off(ptr @open_calls)
  br label %give_up

give_up:
  call void @unlock(ptr @open_calls_lock)
  ret ptr %here

none:
  ret ptr null
}

; Whether there may be a call to join, and a core for one thread more than work now.
define internal i1 @may_join(i64 %more) alwaysinline {
  %first = load atomic ptr, ptr @open_calls monotonic, align 8
  %any = icmp ne ptr %first, null
  %working = load atomic i64, ptr @working monotonic, align 8
  %then = add i64 %working, %more
  %cores = load i64, ptr @lanax_cores
  %idle = icmp sle i64 %then, %cores
  %both = and i1 %any, %idle
  ret i1 %both
}

; A call has ended, and its own thread goes back to XLA: the pool is to send another for calls that may be joined.
define internal void @send_help(ptr %frame) alwaysinline {
entry:
  %any = call i1 @may_join(i64 1)
  br i1 %any, label %send, label %done

send:
  %sent = call i1 @schedule_task(ptr %frame, ptr null)
  br label %done

done:
  ret void
}
