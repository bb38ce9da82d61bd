//! Memory that each thread has for itself, which the data path reaches by two instructions.
//!
//! In a shared library `thread_local!` calls a function of the loader at each access (the general
//! dynamic model of thread-local storage), because such a library may be loaded at any time. One
//! that is preloaded, or linked, is there when the process starts, so its memory can lie at a fixed
//! distance from the thread pointer (the initial-exec model). The stable compiler has no way to ask
//! for that, so [`per_thread!`](crate::per_thread!) declares the memory in assembly. A library that
//! is loaded later takes some bytes of the room that the loader keeps for such libraries.
//!
//! PERF: a request of ab on a connection of its own made thirty such calls, 400 of the library's
//! 1,400 instructions (callgrind).

use std::cell::Cell;

/// Types whose values may begin as zero bytes in every thread.
///
/// # Safety
/// Zero bytes are a value; no drop; an alignment of at most 16.
pub unsafe trait ZeroInThread {}

// SAFETY: integers and `bool`, of which zero is a value.
unsafe impl ZeroInThread for Cell<u32> {}
// SAFETY: as above.
unsafe impl ZeroInThread for Cell<usize> {}
// SAFETY: as above.
unsafe impl ZeroInThread for Cell<bool> {}
// SAFETY: as above.
unsafe impl ZeroInThread for Cell<(u32, u32)> {}

/// Declares a value that each thread has for itself, and that begins as zero bytes. It is used as
/// a [`std::thread::LocalKey`], by `with`. The literal, with the version of the crate, is the name
/// of a symbol.
#[macro_export]
macro_rules! per_thread {
    ($(#[$doc:meta])* $vis:vis $name:ident: $ty:ty, $symbol:literal) => {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        ::core::arch::global_asm!(
            concat!(".pushsection .tbss.", $crate::per_thread_symbol!($symbol), ",\"awT\",@nobits"),
            ".balign 16",
            concat!(".globl ", $crate::per_thread_symbol!($symbol)),
            concat!(".hidden ", $crate::per_thread_symbol!($symbol)),
            concat!($crate::per_thread_symbol!($symbol), ":"),
            ".zero {size}",
            ".popsection",
            size = const ::core::mem::size_of::<$ty>(),
        );

        #[cfg(all(target_arch = "x86_64", not(miri)))]
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[allow(
            non_camel_case_types,
            clippy::upper_case_acronyms,
            reason = "it takes the place of a static"
        )]
        $vis struct $name;

        #[cfg(all(target_arch = "x86_64", not(miri)))]
        impl $name {
            /// Calls `f` with the calling thread's value.
            #[inline(always)]
            $vis fn with<R>(self, f: impl FnOnce(&$ty) -> R) -> R {
                const fn is_zero_in_thread<T: $crate::per_thread::ZeroInThread>() {}
                const { is_zero_in_thread::<$ty>() };
                let at: *const $ty;
                // SAFETY: loads the thread pointer and the distance of the symbol from it, both of
                // which never change in a thread.
                unsafe {
                    ::core::arch::asm!(
                        "mov {at}, qword ptr fs:[0]",
                        concat!(
                            "add {at}, qword ptr [rip + ",
                            $crate::per_thread_symbol!($symbol),
                            "@GOTTPOFF]"
                        ),
                        at = out(reg) at,
                        options(pure, nomem, nostack),
                    );
                }
                // SAFETY: the memory of this size above, aligned to 16, of zeroes at first, which
                // `ZeroInThread` makes a value; it lives as long as the thread, and no other one
                // has its address, as `f` cannot keep it.
                f(unsafe { &*at })
            }
        }

        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        ::std::thread_local! {
            $(#[$doc])*
            $vis static $name: $ty = const {
                const fn is_zero_in_thread<T: $crate::per_thread::ZeroInThread>() {}
                is_zero_in_thread::<$ty>();
                // SAFETY: `ZeroInThread` says so.
                unsafe { ::core::mem::zeroed() }
            };
        }
    };
}

/// The name of a symbol of this version of the calling crate: two versions can be linked.
#[doc(hidden)]
#[macro_export]
macro_rules! per_thread_symbol {
    ($symbol:literal) => {
        concat!(
            "rsock_thread_",
            $symbol,
            "_",
            env!("CARGO_PKG_VERSION_MAJOR"),
            "_",
            env!("CARGO_PKG_VERSION_MINOR"),
            "_",
            env!("CARGO_PKG_VERSION_PATCH")
        )
    };
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::thread;

    crate::per_thread! {
        /// Counts, for the test.
        COUNT: Cell<u32>, "test_count"
    }
    crate::per_thread! {
        /// Lies beside it.
        OTHER: Cell<usize>, "test_other"
    }

    #[test]
    fn each_thread_has_values_of_its_own_that_begin_as_zero() {
        let count_to = |n: u32| {
            for _ in 0..n {
                COUNT.with(|count| count.set(count.get() + 1));
            }
            (COUNT.with(Cell::get), OTHER.with(Cell::get))
        };
        OTHER.with(|other| other.set(usize::MAX));
        assert_eq!(count_to(3), (3, usize::MAX));
        let others: Vec<_> = (0..4).map(|n| thread::spawn(move || count_to(n))).collect();
        let found = others.into_iter().map(|thread| thread.join().expect("a count"));
        assert_eq!(found.collect::<Vec<_>>(), [(0, 0), (1, 0), (2, 0), (3, 0)]);
        assert_eq!(count_to(1), (4, usize::MAX));
    }
}
