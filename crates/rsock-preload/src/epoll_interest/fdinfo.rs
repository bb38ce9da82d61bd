//! Parses a line of `/proc/self/fdinfo` of an epoll set: one entry of its interest list.

/// One entry, as the kernel prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) fd: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// The inode of the file; none if the kernel does not print it.
    pub(crate) inode: Option<u64>,
}

/// `tfd: 5 events: 19 data: abc  pos:0 ino:1f sdev:8`; the first number is decimal, the others are
/// hexadecimal.
pub(crate) fn parse(line: &str) -> Option<Entry> {
    let mut words = line.split_whitespace();
    let mut after = |name| (words.next()? == name).then(|| words.next())?;
    let fd = after("tfd:")?.parse().ok()?;
    let events = u32::from_str_radix(after("events:")?, 16).ok()?;
    let data = u64::from_str_radix(after("data:")?, 16).ok()?;
    let inode = words.find_map(|word| word.strip_prefix("ino:"));
    let inode = inode.and_then(|ino| u64::from_str_radix(ino, 16).ok());
    Some(Entry { fd, events, data, inode })
}

/// For the fuzzer: parses lines of any text, and checks that an entry survives being printed and
/// parsed again.
///
/// # Panics
/// If an entry does not survive.
#[cfg(any(test, fuzzing))]
pub(crate) fn check_any(text: &[u8]) {
    for line in String::from_utf8_lossy(text).lines() {
        let Some(entry) = parse(line) else { continue };
        let Entry { fd, events, data, inode } = entry;
        let again = match inode {
            Some(inode) => {
                format!("tfd: {fd} events: {events:x} data: {data:x} pos:0 ino:{inode:x}")
            }
            None => format!("tfd: {fd} events: {events:x} data: {data:x}"),
        };
        assert_eq!(parse(&again), Some(entry), "{line:?}");
    }
}

#[cfg(test)]
#[path = "../../../../fuzz/driver.rs"]
mod driver;

#[cfg(test)]
mod tests {
    use super::driver;

    #[test]
    fn lines_of_the_kernel_pass() {
        driver::run("fdinfo", 20_000, super::check_any);
    }
}
