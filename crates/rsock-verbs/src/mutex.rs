//! Taking locks without waiting.

use std::sync::{Mutex, MutexGuard, TryLockError};

/// Locks `mutex`, poisoned or not; `None` if another thread holds the lock. In a forked child that
/// may be a thread of its parent, which never releases it here.
pub fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(locked) => Some(locked),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_poisoned_lock_is_taken_and_one_that_another_thread_holds_is_not() {
        let mutex = Mutex::new(1);
        thread::scope(|s| {
            let poisons = s.spawn(|| {
                let _locked = mutex.lock();
                panic!("poisons the lock");
            });
            assert!(poisons.join().is_err());
        });
        let held = try_lock(&mutex).expect("no thread holds it");
        assert_eq!(*held, 1);
        thread::scope(|s| {
            s.spawn(|| assert!(try_lock(&mutex).is_none())).join().expect("no panic");
        });
    }
}
