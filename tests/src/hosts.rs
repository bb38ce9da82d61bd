//! Tests that need two hosts: the same test runs in both guests of a lab at once, and each plays
//! its part.
//!
//! Tests of one program run one after the other there, so that both guests are in the same test.

use std::env;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

/// Which of the two this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The first.
    A,
    /// The second.
    B,
}

/// One test, in this guest.
///
/// If it fails here, the other guest does not wait for us.
#[derive(Debug)]
pub struct Guest {
    /// The part to play.
    pub role: Role,
    name: &'static str,
}

impl Guest {
    /// Begins the test called `name`, in both guests together.
    ///
    /// # Panics
    /// Outside of a lab with two guests; if the other guest is not coming.
    #[must_use]
    pub fn begin(name: &'static str) -> Self {
        let role = match (variable("LAB_GUESTS").as_str(), variable("LAB_ROLE").as_str()) {
            ("2", "a") => Role::A,
            ("2", "b") => Role::B,
            guests => panic!("this test runs in a lab with two guests, not {guests:?}"),
        };
        let this = Self { role, name };
        this.meet("begins");
        this
    }

    /// Waits until the other guest comes to the same point of the test.
    ///
    /// # Panics
    /// If it is not coming.
    pub fn meet(&self, point: &str) {
        let meet = PathBuf::from(variable("LAB_DIR")).join("meet");
        let point = format!("{}-{point}", self.name);
        let met = Command::new("sh").arg(meet).arg(&point).status().expect("a shell");
        assert!(met.success(), "the other guest never came to {point}");
    }

    /// A new file beside what the lab keeps of a failure, for what a program says.
    ///
    /// # Panics
    /// If the guests' directory cannot be written.
    #[must_use]
    pub fn file(&self, what: &str) -> fs::File {
        let place = PathBuf::from(variable("LAB_OUT")).join(format!("{}.{what}", self.name));
        fs::File::create(place).expect("the guests' directory")
    }

    /// Leaves `text` for the other guest, to be [taken](Self::take) after a meeting.
    ///
    /// # Panics
    /// If the guests' directory cannot be written.
    pub fn give(&self, text: &str) {
        fs::write(self.place("given"), text).expect("the guests' directory");
    }

    /// What the other guest left.
    ///
    /// # Panics
    /// If it left nothing.
    #[must_use]
    pub fn take(&self) -> String {
        let other = Self { role: self.role.other(), name: self.name };
        let text = fs::read_to_string(other.place("given")).expect("left before the meeting");
        // Only ours may fail the test.
        std::mem::forget(other);
        text
    }

    /// This guest's address on the wire.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        address("LAB_IP")
    }

    /// The other's.
    #[must_use]
    pub fn peer_ip(&self) -> IpAddr {
        address("LAB_PEER")
    }

    fn place(&self, what: &str) -> PathBuf {
        let role = if self.role == Role::A { 'a' } else { 'b' };
        PathBuf::from(variable("LAB_OUT")).join(format!(".{what}.{}.{role}", self.name))
    }
}

impl Role {
    fn other(self) -> Self {
        if self == Self::A { Self::B } else { Self::A }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if thread::panicking() {
            let role = if self.role == Role::A { 'a' } else { 'b' };
            let place = PathBuf::from(variable("LAB_OUT")).join(format!(".failed.{role}"));
            let _ = fs::write(place, self.name);
        }
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_default()
}

fn address(name: &str) -> IpAddr {
    variable(name).parse().expect("the lab says it")
}
