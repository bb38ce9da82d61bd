//! Both ends of an echo on Tokio: its TCP streams, and its default runtime with many threads.

use super::{SIZE, message, print_rate, wrong_answer};
use std::io;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

pub(super) fn serve(port: u16) -> io::Result<()> {
    Runtime::new()?.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            // A connection that fails ends, and its client tells.
            tokio::spawn(answer(stream));
        }
    })
}

async fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buf = [0; SIZE];
    loop {
        match stream.read(&mut buf).await? {
            0 => return Ok(()),
            n => stream.write_all(&buf[..n]).await?,
        }
    }
}

pub(super) fn ask(port: u16, time: Duration) -> io::Result<()> {
    let rate = Runtime::new()?.block_on(async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let (mut count, start) = (0, Instant::now());
        let mut answer = [0; SIZE];
        while start.elapsed() < time {
            let message = message(count);
            stream.write_all(&message).await?;
            stream.read_exact(&mut answer).await?;
            if answer != message {
                return Err(wrong_answer());
            }
            count += 1;
        }
        Ok(count as f64 / start.elapsed().as_secs_f64())
    })?;
    print_rate(rate)
}
