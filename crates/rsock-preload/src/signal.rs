//! Signal handlers around the data path.
//!
//! Every handler that the program installs is called by a wrapper of ours, which does three things.
//! It marks the thread as inside a handler, where nothing is allocated. It counts the handlers that ran, for blocking calls that have to end with `EINTR`. And when the
//! thread is inside a [`Section`] it puts an asynchronous signal off: queues it again, with its
//! original `siginfo`, blocked in the interrupted context, until the section ends. So no handler,
//! and no `longjmp` out of one, ever meets a half-done change of a stream.
//!
//! The program sees none of this: `sigaction` reports its own handler and flags. The kernel keeps
//! the mask; this module keeps what the wrapper hides. `SA_RESETHAND` is done here, because a
//! signal that was put off must still find its handler.
//!
//! `SIGSEGV` and `SIGBUS` come to the wrapper even where the program wants the default action, because a copy of
//! the core may meet memory of the program that is not there ([`fault`]). The program sees neither the signal nor
//! the wrapper then; any other such signal gets what the program asked for.

use crate::{context, errno, guard, process};
use libc::{c_int, c_long, c_ulong, c_void, sigaction as Action, siginfo_t};
use rsock_core::interrupt::{self, InHandler, Section};
use rsock_verbs::{fault, raw};
use std::cell::Cell;
use std::mem::{self, ManuallyDrop, MaybeUninit};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

/// Signal numbers are below this.
const SIGNALS: usize = 65;
/// Size of the kernel's signal set, not libc's.
const KERNEL_SIGSET: usize = 8;

/// A handler as the kernel calls it. One that takes only the number ignores the rest.
type Handler = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

/// What the program asked for, where the kernel was told otherwise.
struct Record {
    handler: AtomicUsize,
    flags: AtomicI32,
}

static RECORDS: [Record; SIGNALS] =
    [const { Record { handler: AtomicUsize::new(libc::SIG_DFL), flags: AtomicI32::new(0) } };
        SIGNALS];

/// Serialises changes of actions. Held inside a section only, so its holder is never a thread
/// that a handler has interrupted.
static CHANGING: AtomicBool = AtomicBool::new(false);

/// Signals whose `signal` handlers interrupt system calls (`siginterrupt`), by bit number.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Signals of this thread that are put off, as the kernel's set.
    static PUT_OFF: Cell<u64> = const { Cell::new(0) };
    /// Held from before a fork of this thread until after it, in both processes.
    static FORKING: Cell<Option<ManuallyDrop<Section>>> = const { Cell::new(None) };
}

/// Has [`deliver`] called at the end of sections. Idempotent.
pub(crate) fn register() {
    interrupt::on_leave(deliver);
}

/// Has the wrapper called for signals that a copy of ours may cause, unless the program ignores them.
pub(crate) fn watch_faults() {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return;
    }
    for signal in FAULTS {
        // SAFETY: zeroes are a valid `sigaction`.
        let mut action: Action = unsafe { mem::zeroed() };
        // SAFETY: null and a live action.
        let known = unsafe { change(signal, ptr::null(), &raw mut action) };
        if known == 0 && action.sa_sigaction != libc::SIG_IGN {
            // SAFETY: a live action and null.
            unsafe { change(signal, &raw const action, ptr::null_mut()) };
        }
    }
    fault::arm();
}

/// What a copy from or to memory that is not there causes.
const FAULTS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// As `sigaction(2)`, behind which the wrapper hides.
///
/// # Safety
/// As `sigaction(2)`: null or valid pointers.
pub(crate) unsafe fn change(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    let Some(record) = record_of(signal) else {
        // SAFETY: the caller's promise; the next definition rejects the number.
        return unsafe { crate::next::sigaction(signal, new, old) };
    };
    // SAFETY: null or valid by the caller's promise.
    let wanted = unsafe { new.as_ref() };
    let section = Section::enter();
    lock();
    let before = (record.handler.load(Ordering::Relaxed), record.flags.load(Ordering::Relaxed));
    let mut kernel = wanted.copied();
    let is_fault = FAULTS.contains(&signal);
    if let Some(action) = &mut kernel
        && (is_handler(action.sa_sigaction) || is_fault && action.sa_sigaction == libc::SIG_DFL)
        && !process::is_borrowed()
    {
        register();
        // First, because a signal may come as soon as the kernel knows.
        record.handler.store(action.sa_sigaction, Ordering::Relaxed);
        record.flags.store(action.sa_flags, Ordering::Relaxed);
        if !is_handler(action.sa_sigaction) {
            // Flags of handlers mean nothing to the program then.
            action.sa_flags = libc::SA_ONSTACK | libc::SA_RESTART;
        }
        action.sa_sigaction = wrapper_address();
        action.sa_flags = action.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO;
    }
    let kernel_new = kernel.as_ref().map_or(ptr::null(), ptr::from_ref);
    let mut was = MaybeUninit::<Action>::zeroed();
    // SAFETY: null or a live action, and room for the old one.
    let result = unsafe { crate::next::sigaction(signal, kernel_new, was.as_mut_ptr()) };
    if result == 0 {
        // SAFETY: zeroes are a valid `sigaction`, and the call has filled it.
        let mut was = unsafe { was.assume_init() };
        if was.sa_sigaction == wrapper_address() {
            (was.sa_sigaction, was.sa_flags) = before;
        }
        if !old.is_null() {
            // SAFETY: not null, so writable by the caller's promise.
            unsafe { old.write(was) };
        }
    } else {
        record.handler.store(before.0, Ordering::Relaxed);
        record.flags.store(before.1, Ordering::Relaxed);
    }
    unlock();
    drop(section);
    result
}

/// As the C functions of the `signal` family: one handler, these flags, a mask of the signal
/// itself if `mask_itself`. Returns the handler before, or `SIG_ERR`.
pub(crate) fn set_handler(signal: c_int, handler: usize, flags: c_int, mask_itself: bool) -> usize {
    if handler == libc::SIG_ERR || record_of(signal).is_none() {
        errno::set(libc::EINVAL);
        return libc::SIG_ERR;
    }
    // SAFETY: zeroes are a valid `sigaction`.
    let mut new: Action = unsafe { mem::zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    if mask_itself {
        // SAFETY: a live set, and a number that `record_of` knows.
        unsafe { libc::sigaddset(&raw mut new.sa_mask, signal) };
    }
    let mut old = new;
    // SAFETY: live actions.
    if unsafe { change(signal, &raw const new, &raw mut old) } == 0 {
        old.sa_sigaction
    } else {
        libc::SIG_ERR
    }
}

/// Whether handlers set by `signal` let system calls on `signal` end with `EINTR`.
pub(crate) fn interrupts(signal: c_int) -> bool {
    INTERRUPTING.load(Ordering::Relaxed) & bit(signal) != 0
}

/// As `siginterrupt(3)`.
pub(crate) fn set_interrupts(signal: c_int, interrupts: bool) -> c_int {
    // SAFETY: zeroes are a valid `sigaction`.
    let mut action: Action = unsafe { mem::zeroed() };
    // SAFETY: null and a live action.
    if unsafe { change(signal, ptr::null(), &raw mut action) } != 0 {
        return -1;
    }
    if interrupts {
        INTERRUPTING.fetch_or(bit(signal), Ordering::Relaxed);
        action.sa_flags &= !libc::SA_RESTART;
    } else {
        INTERRUPTING.fetch_and(!bit(signal), Ordering::Relaxed);
        action.sa_flags |= libc::SA_RESTART;
    }
    // SAFETY: a live action and null.
    unsafe { change(signal, &raw const action, ptr::null_mut()) }
}

/// Sends SIGPIPE to the calling thread, as the kernel does when a stream has no reader.
pub(crate) fn raise_sigpipe() {
    let saved = errno::read();
    // SAFETY: zeroes are a valid `siginfo_t`.
    let mut info: siginfo_t = unsafe { mem::zeroed() };
    info.si_signo = libc::SIGPIPE;
    info.si_code = libc::SI_USER;
    let sender = Sender {
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        uid: rustix::process::getuid().as_raw(),
    };
    // SAFETY: inside `info`: the kernel's layout has the sender here, on every 64-bit Linux.
    let at = unsafe { (&raw mut info).cast::<u8>().add(SENDER_OFFSET) };
    // SAFETY: in bounds, and unaligned writes are what this call is for.
    unsafe { at.cast::<Sender>().write_unaligned(sender) };
    queue_to_self(libc::SIGPIPE, &raw const info);
    errno::set(saved);
}

/// What follows the three numbers in the `siginfo_t` of a `kill`.
#[repr(C)]
struct Sender {
    pid: libc::pid_t,
    uid: libc::uid_t,
}

const SENDER_OFFSET: usize = 16;
const _: () = assert!(SENDER_OFFSET + size_of::<Sender>() <= size_of::<siginfo_t>());

/// Has libc's handler of its cancellation signal called by the wrapper, like any other. To be
/// called when libc has installed it; idempotent.
pub(crate) fn wrap_cancellation() {
    let Some(record) = record_of(SIGCANCEL) else { return };
    let section = Section::enter();
    lock();
    let mut action = KernelAction { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };
    // libc's `sigaction` refuses this number, to itself too.
    // SAFETY: a live kernel action to fill.
    let known = unsafe { kernel_action(ptr::null(), &raw mut action) };
    if known && is_handler(action.handler) && action.handler != wrapper_address() {
        register();
        record.handler.store(action.handler, Ordering::Relaxed);
        record.flags.store(libc::SA_RESTART, Ordering::Relaxed);
        action.handler = wrapper_address();
        // It now also comes to threads that are not to be cancelled: they must not notice.
        action.flags |= c_ulong::from(libc::SA_RESTART.cast_unsigned());
        // SAFETY: a live kernel action.
        unsafe { kernel_action(&raw const action, ptr::null_mut()) };
    }
    unlock();
    drop(section);
}

/// Sends libc's cancellation signal to a thread of this process.
pub(crate) fn send_cancellation(tid: c_int) {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: integers only.
    let _ = unsafe { raw::syscall!(libc::SYS_tgkill, pid, tid, SIGCANCEL) };
}

/// Repeats for the calling thread a cancellation signal that came at the wrong moment. The thread
/// may end here, by unwinding.
pub(crate) fn cancel_self() {
    let pid = c_long::from(rustix::process::getpid().as_raw_nonzero().get());
    let tid = c_long::from(rustix::thread::gettid().as_raw_nonzero().get());
    // SAFETY: libc's function of this signature. Its handler may unwind from the call, which an inline system
    // call does not allow.
    let syscall = unsafe {
        mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(c_long, ...) -> c_long>(
            crate::next::address::syscall(),
        )
    };
    // SAFETY: integers only.
    unsafe { syscall(libc::SYS_tgkill, pid, tid, c_long::from(SIGCANCEL)) };
}

/// The signal by which glibc cancels threads.
const SIGCANCEL: c_int = 32;

/// `struct sigaction` as the kernel has it.
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: c_ulong,
    restorer: usize,
    mask: u64,
}

/// `rt_sigaction(2)` on the cancellation signal.
///
/// # Safety
/// Null or live actions.
unsafe fn kernel_action(new: *const KernelAction, old: *mut KernelAction) -> bool {
    // SAFETY: the caller's promise; the size is that of the mask.
    unsafe { raw::syscall!(libc::SYS_rt_sigaction, SIGCANCEL, new, old, KERNEL_SIGSET) }.is_ok()
}

/// Takes the lock over a fork, so that the child does not inherit it from another thread.
pub(crate) fn lock_for_fork() {
    let section = Section::enter();
    lock();
    FORKING.set(Some(ManuallyDrop::new(section)));
}

/// Ends what [`lock_for_fork`] began.
pub(crate) fn unlock_after_fork() {
    unlock();
    drop(FORKING.take().map(ManuallyDrop::into_inner));
}

fn lock() {
    // SYNC(actions): Acquire pairs with the Release in `unlock`.
    while CHANGING.swap(true, Ordering::Acquire) {
        rustix::thread::sched_yield();
    }
}

fn unlock() {
    CHANGING.store(false, Ordering::Release);
}

fn record_of(signal: c_int) -> Option<&'static Record> {
    let index = usize::try_from(signal).ok()?;
    (index != 0).then(|| RECORDS.get(index)).flatten()
}

fn is_handler(action: usize) -> bool {
    action != libc::SIG_DFL && action != libc::SIG_IGN
}

fn wrapper_address() -> usize {
    let wrapper: Handler = wrapper;
    wrapper as usize
}

fn bit(signal: c_int) -> u64 {
    u32::try_from(signal).ok().and_then(|n| 1u64.checked_shl(n.wrapping_sub(1))).unwrap_or(0)
}

/// The handler that the kernel knows.
///
/// # Safety
/// Called by the kernel to deliver a signal, with that signal's information and context.
unsafe extern "C-unwind" fn wrapper(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let Some(record) = record_of(signal) else { return };
    // SAFETY: the kernel's own context.
    if signal == SIGCANCEL && guard::puts_off_cancellation(unsafe { context::stack(context) }) {
        // Its handler may unwind, which must not happen here: the call in progress ends first.
        interrupt::note_handler(false);
        // SAFETY: the kernel's own context.
        unsafe { context::end_transfer(context) };
        return;
    }
    // SAFETY: the kernel passes valid information, since the action asks for it.
    let is_synchronous = is_synchronous(signal, unsafe { (*info).si_code });
    // SAFETY: the kernel's own context.
    if is_synchronous && FAULTS.contains(&signal) && unsafe { fault::recover(context) } {
        return;
    }
    if interrupt::is_inside() && !is_synchronous {
        // SAFETY: the kernel's own arguments.
        unsafe { put_off(signal, info, context) };
        PUT_OFF.set(PUT_OFF.get() | bit(signal));
        interrupt::note_deferred();
        return;
    }
    let handler = record.handler.load(Ordering::Relaxed);
    let flags = record.flags.load(Ordering::Relaxed);
    if !is_handler(handler) {
        if FAULTS.contains(&signal) && handler == libc::SIG_DFL {
            // The instruction does it again, or the signal comes again when this handler returns.
            reset(signal, flags);
            if !is_synchronous {
                queue_to_self(signal, info);
            }
        }
        return;
    }
    if flags & libc::SA_RESETHAND != 0 {
        if FAULTS.contains(&signal) {
            record.handler.store(libc::SIG_DFL, Ordering::Relaxed);
        } else {
            reset(signal, flags);
        }
    }
    interrupt::note_handler(flags & libc::SA_RESTART != 0);
    // SAFETY: the program gave this address as the handler of a signal.
    let handler = unsafe { mem::transmute::<usize, Handler>(handler) };
    let lifted = guard::Lifted::new();
    let in_handler = InHandler::begin();
    // SAFETY: called as the kernel would have called it.
    unsafe { handler(signal, info, context) };
    drop(in_handler);
    drop(lifted);
}

/// `SA_RESETHAND`: the next such signal finds the default action. Mask and flags stay.
fn reset(signal: c_int, flags: c_int) {
    let saved = errno::read();
    // SAFETY: zeroes are a valid `sigaction`.
    let mut action: Action = unsafe { mem::zeroed() };
    // SAFETY: null and a live action.
    unsafe { crate::next::sigaction(signal, ptr::null(), &raw mut action) };
    action.sa_sigaction = libc::SIG_DFL;
    action.sa_flags = flags;
    // SAFETY: a live action and null.
    unsafe { crate::next::sigaction(signal, &raw const action, ptr::null_mut()) };
    errno::set(saved);
}

/// Whether the signal is the doing of the very instruction that it interrupted, which would only
/// do it again.
fn is_synchronous(signal: c_int, code: c_int) -> bool {
    let by_instruction = matches!(
        signal,
        libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP | libc::SIGSYS
    );
    /// The kernel has found broken memory that this process has, and no instruction has met it.
    const BUS_MCEERR_AO: c_int = 5;
    // Codes above zero come from the kernel, others from `kill` and its like.
    by_instruction && code > 0 && !(signal == libc::SIGBUS && code == BUS_MCEERR_AO)
}

/// Queues the signal again, blocked in the interrupted context.
///
/// # Safety
/// The arguments of a signal handler that the kernel has called.
unsafe fn put_off(signal: c_int, info: *const siginfo_t, context: *mut c_void) {
    let saved = errno::read();
    let this = bit(signal);
    // With SA_NODEFER it is not blocked while its handler runs, and would come back at once.
    change_mask(libc::SIG_BLOCK, this);
    queue_to_self(signal, info);
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel's context, whose mask it restores when the handler returns.
    let mask = unsafe { &raw mut (*context).uc_sigmask }.cast::<u64>();
    // SAFETY: the kernel's signal set is eight bytes; libc's is larger and begins with it.
    let blocked = unsafe { mask.read_unaligned() };
    // SAFETY: as above.
    unsafe { mask.write_unaligned(blocked | this) };
    errno::set(saved);
}

/// The section has ended: lets the signals that were put off come.
fn deliver() {
    let due = PUT_OFF.replace(0);
    if due != 0 {
        let saved = errno::read();
        change_mask(libc::SIG_UNBLOCK, due);
        errno::set(saved);
    }
}

fn change_mask(how: c_int, set: u64) {
    // SAFETY: a live kernel signal set, and no room for the old one.
    let _ = unsafe {
        raw::syscall!(
            libc::SYS_rt_sigprocmask,
            how,
            &raw const set,
            ptr::null_mut::<u64>(),
            KERNEL_SIGSET,
        )
    };
}

fn queue_to_self(signal: c_int, info: *const siginfo_t) {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    // SAFETY: valid information; a thread may send itself any.
    let sent = unsafe { raw::syscall!(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, info) };
    if sent.is_err() {
        // The queue is full: at least that it came is kept, for all but real-time signals.
        // SAFETY: integers only.
        let _ = unsafe { raw::syscall!(libc::SYS_tgkill, pid, tid, signal) };
    }
}
