//! The client of a soak: on each line of its input, that many connections, one after another, and
//! datagrams between them. Every byte that comes back is compared.

use crate::generate::Random;
use crate::sys;
use std::io::{self, BufRead, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Runs with the server's ports, `TCP UDP`.
pub(crate) fn run(ports: &str) -> ! {
    let mut ports = ports.split(' ').map(|port| port.parse::<u16>().expect("a port"));
    let (stream_port, datagram_port) = (ports.next().expect("two"), ports.next().expect("two"));
    let mut random = Random::new(1);
    for line in io::stdin().lock().lines() {
        let n: u64 = line.ok().and_then(|line| line.parse().ok()).expect("a number");
        for i in 0..n {
            connection(stream_port, &mut random);
            if i.is_multiple_of(50) {
                datagrams(datagram_port, &mut random);
            }
        }
        println!("done");
    }
    sys::exit_now(0)
}

fn connection(port: u16, random: &mut Random) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
    for _ in 0..random.pick(&[1, 3, 8, 30, 60]) {
        let len = random.pick(&[1, 64, 1000, 30_000]);
        let sent = bytes(random, len);
        stream.write_all(&sent).expect("the server reads");
        let mut got = vec![0; len];
        stream.read_exact(&mut got).expect("the server answers");
        assert!(got == sent, "other bytes came back");
    }
    if random.below(5) == 0 {
        sys::linger_not_at_all(stream.as_raw_fd());
    }
}

/// Some datagrams on a socket of their own. One may be lost, but none may be changed.
fn datagrams(port: u16, random: &mut Random) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a limit");
    for _ in 0..40 {
        let len = random.pick(&[1, 100, 2000]);
        let sent = bytes(random, len);
        socket.send_to(&sent, ("127.0.0.1", port)).expect("sent");
        let mut got = [0; 4096];
        if let Ok((n, _)) = socket.recv_from(&mut got) {
            assert!(got[..n] == sent, "another datagram came back");
        }
    }
}

fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    let seed = random.next();
    let mut random = Random::new(seed);
    let words = (0..len.div_ceil(8)).flat_map(|_| random.next().to_le_bytes());
    words.take(len).collect()
}
