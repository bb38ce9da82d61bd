//! The CPUs that this process may use, and how to bind it to some of them.

use crate::error::Error;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns the CPUs that the calling thread may run on, ascending.
#[must_use]
pub fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Binds the calling thread, and the threads and processes that it makes from now on, to `cpus`.
///
/// # Errors
/// [`Error::Usage`] if there is no such CPU or this process may not use it.
pub fn bind(cpus: &[usize]) -> Result<(), Error> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        if *cpu >= CpuSet::MAX_CPU {
            return Err(Error::Usage(format!("there is no CPU {cpu}")));
        }
        set.set(*cpu);
    }
    sched_setaffinity(None, &set)
        .map_err(|_| Error::Usage(format!("cannot run on CPU {}", list(cpus))))
}

fn list(cpus: &[usize]) -> String {
    let names: Vec<_> = cpus.iter().map(usize::to_string).collect();
    names.join(",")
}
