//! The result of an incast, as text and as JSON.

use super::wire::{Plan, Received, Sent};
use rsock_cli::perf::datagrams::{Counters, Socket, add};
use serde::Serialize;
use std::fmt;

/// The result of all runs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) test: &'static str,
    pub(super) device: &'static str,
    pub(super) clients: u32,
    pub(super) threads: u16,
    /// Bytes of a datagram.
    pub(super) size: usize,
    /// Datagrams that a client sends in a call.
    pub(super) depth: u16,
    /// Whether service threads copied what arrived.
    pub(super) copy: bool,
    /// How long a service thread rested after each batch.
    pub(super) slow_reader_seconds: f64,
    pub(super) runs: Vec<Run>,
    /// What arrived with pacing over what arrived without, where both were run.
    pub(super) goodput_ratio: Option<f64>,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Run {
    pub(super) pacing: bool,
    pub(super) seconds: f64,
    pub(super) clients: Vec<Share>,
    pub(super) total: Share,
    /// Datagrams dropped, by the counter's name.
    pub(super) drops: Counters,
    /// Datagrams sent, less those received and dropped: 0 if none is missing. `None` where not all
    /// drops are counted.
    pub(super) unaccounted: Option<i64>,
    /// Datagrams received after a later one of the same client, or twice.
    pub(super) out_of_order: u64,
    /// Datagrams or answers that a kernel socket carried although another path was asked for.
    pub(super) by_udp: u64,
    /// Feedbacks sent to clients, and how many of them got lost.
    pub(super) feedbacks: u64,
    pub(super) feedbacks_lost: u64,
    /// How often a client waited in vain for feedback.
    pub(super) timeouts: u64,
    /// The counters of the server's host: drops, and marks of congestion (ECN). Other programs
    /// count too.
    pub(super) host_counters: Counters,
}

/// The figures of one client, or of all.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Share {
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) lost: u64,
    pub(super) lost_percent: f64,
    /// The rate of received bytes.
    pub(super) gib_per_second: f64,
    /// Millions of datagrams per second.
    pub(super) sent_mops: f64,
    pub(super) received_mops: f64,
}

impl Share {
    fn new(sent: u64, received: u64, size: usize, seconds: f64) -> Self {
        let lost = sent.saturating_sub(received);
        let per_second = |n: u64| n as f64 / seconds;
        Self {
            sent,
            received,
            lost,
            lost_percent: lost as f64 * 100.0 / (sent as f64).max(1.0),
            gib_per_second: per_second(received) * size as f64 / f64::from(1 << 30),
            sent_mops: per_second(sent) / 1e6,
            received_mops: per_second(received) / 1e6,
        }
    }
}

impl Run {
    pub(super) fn new<S: Socket>(plan: &Plan, sent: Vec<Sent>, received: Received) -> Self {
        let longest = sent.iter().map(|sent| sent.time).max().unwrap_or_default();
        let seconds = longest.as_secs_f64().max(1e-9);
        let pairs = || sent.iter().zip(&received.by_client);
        let share = |sent, received| Share::new(sent, received, plan.size, seconds);
        let clients: Vec<_> = pairs().map(|(sent, received)| share(sent.sent, *received)).collect();
        let total = clients.iter().fold([0; 2], |[a, b], one| [a + one.sent, b + one.received]);
        let mut drops = received.drops;
        sent.iter().for_each(|sent| add(&mut drops, sent.drops.clone()));
        let missing = || {
            let known = total[1] + drops.values().sum::<u64>();
            total[0].cast_signed() - known.cast_signed()
        };
        let sum = |f: fn(&Sent) -> u64| sent.iter().map(f).sum::<u64>();
        Self {
            pacing: plan.pacing,
            seconds,
            total: share(total[0], total[1]),
            clients,
            unaccounted: S::COUNTS_LOSS.then(missing),
            drops,
            out_of_order: received.out_of_order,
            by_udp: sum(|sent| sent.detours),
            feedbacks: received.feedbacks,
            feedbacks_lost: received.feedbacks_lost + sum(|sent| sent.feedbacks_lost),
            timeouts: sum(|sent| sent.timeouts),
            host_counters: received.host,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, clients, threads, size, depth, copy, .. } = self;
        let copied = if *copy { "copied out" } else { "not copied out" };
        write!(f, "incast over {device}: {clients} clients to {threads} service threads, ")?;
        writeln!(f, "{size} B, depth {depth}, {copied}")?;
        if self.slow_reader_seconds > 0.0 {
            writeln!(f, "  each thread rests {} ms per batch", self.slow_reader_seconds * 1e3)?;
        }
        self.runs.iter().try_for_each(|run| run.fmt(f))?;
        if let Some(ratio) = self.goodput_ratio {
            writeln!(f, "paced : unpaced {ratio:.2} of the goodput")?;
        }
        Ok(())
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.pacing { "paced" } else { "unpaced" };
        writeln!(f, "{how}, {:.2} s", self.seconds)?;
        let names = ["client", "sent", "received", "lost %", "GiB/s", "Mops sent", "received"];
        let [client, names @ ..] = names;
        write!(f, "  {client:<6}")?;
        names.iter().try_for_each(|name| write!(f, "{name:>12}"))?;
        writeln!(f)?;
        for (number, client) in self.clients.iter().enumerate() {
            line(f, &format!("#{number}"), client)?;
        }
        line(f, "total", &self.total)?;
        for (name, n) in self.drops.iter().filter(|(_, n)| **n != 0) {
            writeln!(f, "  dropped {n:>14}  {name}")?;
        }
        match self.unaccounted {
            Some(0) => writeln!(f, "  sent = received + dropped")?,
            Some(n) => writeln!(f, "  missing {n:>14}  neither received nor counted as dropped")?,
            None => {}
        }
        for (n, what) in [
            (self.out_of_order, "out of order, or twice"),
            (self.by_udp, "carried by UDP"),
            (self.feedbacks, "feedbacks"),
            (self.feedbacks_lost, "feedbacks lost"),
            (self.timeouts, "times a client waited for one in vain"),
        ] {
            if n != 0 {
                writeln!(f, "  {n:>22}  {what}")?;
            }
        }
        for (name, n) in &self.host_counters {
            writeln!(f, "  {n:>22}  {name} (whole host)")?;
        }
        Ok(())
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, share: &Share) -> fmt::Result {
    let Share { sent, received, lost_percent, gib_per_second, sent_mops, received_mops, .. } =
        share;
    write!(f, "  {name:<6}{sent:>12}{received:>12}{lost_percent:>12.3}{gib_per_second:>12.2}")?;
    writeln!(f, "{sent_mops:>12.3}{received_mops:>12.3}")
}
