//! Compares the hooked functions (`symbols.txt`) with the two tables of system call numbers, those
//! of `concerns_hook` and of `dispatch`: a hooked function whose system call is in neither would be
//! bypassed by `syscall(2)`.

use std::collections::BTreeSet;

const SOURCE: &str = include_str!("mod.rs");
const SYMBOLS: &str = include_str!("../../../symbols.txt");

/// Hooked functions whose system call has another name: by which numbers they are reached.
const NAMED_OTHERWISE: &[(&str, &[&str])] = &[
    ("bsd_signal", &["rt_sigaction"]),
    ("closefrom", &["close_range"]),
    ("execl", &["execve"]),
    ("execle", &["execve"]),
    ("execlp", &["execve"]),
    ("execv", &["execve"]),
    ("execvp", &["execve"]),
    ("execvpe", &["execve"]),
    ("fexecve", &["execveat"]),
    ("io_uring_queue_init", &["io_uring_setup"]),
    ("io_uring_queue_init_mem", &["io_uring_setup"]),
    ("io_uring_queue_init_params", &["io_uring_setup"]),
    ("io_uring_queue_init_try_nosqarr", &["io_uring_setup"]),
    ("pselect", &["pselect6"]),
    ("recv", &["recvfrom"]),
    ("send", &["sendto"]),
    ("sigaction", &["rt_sigaction"]),
    ("siginterrupt", &["rt_sigaction"]),
    ("signal", &["rt_sigaction"]),
    ("sigset", &["rt_sigaction"]),
    ("sockatmark", &["ioctl"]),
    ("ssignal", &["rt_sigaction"]),
    ("sysv_signal", &["rt_sigaction"]),
];

/// Hooked functions without a system call in the tables, and why.
const WITHOUT_NUMBER: &[(&str, &str)] = &[
    ("_Fork", "as `clone`"),
    ("aio_read", "libc's threads make the call"),
    ("aio_write", "as `aio_read`"),
    ("backtrace_symbols_fd", "as `dprintf`"),
    ("clone", "goes to libc's `syscall`; `note_child` has its numbers"),
    ("dlmopen", "as `dlopen`"),
    ("dlopen", "loads a library, whose system calls concern no stream"),
    ("dprintf", "formats; its system call is `write`"),
    ("fclose", "a function of stdio; its system calls are `write` and `close`"),
    ("fdopen", "a function of stdio; makes no system call that concerns the stream"),
    ("lio_listio", "as `aio_read`"),
    ("pidfd_spawn", "as `popen`"),
    ("pidfd_spawnp", "as `popen`"),
    ("popen", "makes a process, whose system call concerns no stream"),
    ("posix_spawn", "as `popen`"),
    ("posix_spawn_file_actions_adddup2", "notes an action for `posix_spawn`"),
    ("posix_spawnp", "as `popen`"),
    ("pthread_cancel", "the signal of libc; a program that sends it by number bypasses libc too"),
    ("pthread_setcanceltype", "a state of libc, which makes no system call"),
    ("syscall", "the function itself"),
    ("system", "as `popen`"),
    ("vdprintf", "as `dprintf`"),
    ("vfork", "as `clone`"),
];

/// Numbers in the tables that no hooked function has, and why.
const WITHOUT_FUNCTION: &[(&str, &str)] = &[("seccomp", "libc has no function for it")];

/// The system calls that the function with this head names.
fn table(head: &str) -> BTreeSet<&'static str> {
    let (_, after) = SOURCE.split_once(head).expect("the function");
    let (body, _) = after.split_once("\n}\n").expect("its end");
    let names = body.split("libc::SYS_").skip(1);
    names.map(|rest| rest.split(|c: char| !is_name(c)).next().unwrap_or_default()).collect()
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The hooked functions, without libc's further names of them.
fn functions() -> BTreeSet<String> {
    let names = SYMBOLS.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    names
        .map(|name| {
            let name = name.strip_prefix("_IO_").unwrap_or(name).trim_start_matches("__");
            name.strip_suffix("_chk").unwrap_or(name).replace("64v2", "2").replace("64", "")
        })
        .collect()
}

fn numbers_of(function: &str) -> Vec<&str> {
    let named = NAMED_OTHERWISE.iter().find(|(name, _)| *name == function);
    named.map_or_else(|| vec![function], |(_, numbers)| numbers.to_vec())
}

#[test]
fn both_tables_have_the_same_system_calls() {
    assert_eq!(table("fn concerns_hook("), table("unsafe fn dispatch("));
}

#[test]
fn every_hooked_function_is_in_the_tables_or_has_a_reason_not_to_be() {
    let table = table("unsafe fn dispatch(");
    for function in functions() {
        let is_excused = WITHOUT_NUMBER.iter().any(|(name, _)| *name == function);
        for number in numbers_of(&function) {
            assert_eq!(table.contains(number), !is_excused, "{function}, by `{number}`");
        }
    }
}

#[test]
fn every_number_has_a_hooked_function_or_a_reason() {
    let functions = functions();
    let reached: BTreeSet<&str> = functions.iter().flat_map(|name| numbers_of(name)).collect();
    for number in table("unsafe fn dispatch(") {
        let is_excused = WITHOUT_FUNCTION.iter().any(|(name, _)| *name == number);
        assert_eq!(reached.contains(number), !is_excused, "{number}");
    }
}

#[test]
fn every_exception_is_of_a_hooked_function_or_of_a_number() {
    let (functions, table) = (functions(), table("unsafe fn dispatch("));
    let named = NAMED_OTHERWISE.iter().map(|(name, _)| name);
    for name in named.chain(WITHOUT_NUMBER.iter().map(|(name, _)| name)) {
        assert!(functions.contains(*name), "{name}");
    }
    assert!(WITHOUT_FUNCTION.iter().all(|(name, _)| table.contains(name)));
}
