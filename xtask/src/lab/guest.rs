//! One guest: a QEMU process, and its output.

use super::kit::{Kit, QEMU};
use crate::steps::{Done, Failure};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;

/// What a guest gets.
#[derive(Debug)]
pub(super) struct Setup<'a> {
    pub(super) kit: &'a Kit,
    /// The run's directory, `/lab` in the guest.
    pub(super) run: &'a Path,
    pub(super) role: char,
    pub(super) n_guests: usize,
    /// The end of the wire to the other guest; it must be inherited.
    pub(super) wire: Option<OwnedFd>,
}

/// What a guest tells.
#[derive(Debug)]
pub(super) enum News {
    /// A line of the script's.
    Line(char, String),
    /// The script's exit status.
    Status(char, i32),
    /// A guest is off.
    Off,
}

/// A running guest; it ends with this value.
#[derive(Debug)]
pub(super) struct Guest {
    qemu: Child,
}

impl Guest {
    /// Boots one; its news go to `news`.
    pub(super) fn start(setup: Setup<'_>, news: Sender<News>) -> Done<Self> {
        let role = setup.role;
        let said = setup.run.join(format!("qemu.{role}"));
        let said = File::create(&said).map_err(|e| Failure::io(said.display(), &e))?;
        let mut command = command(&setup);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(said);
        let mut qemu = command.spawn().map_err(|e| Failure::io("cannot run QEMU", &e))?;
        if let Some(output) = qemu.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                    let line = String::from_utf8_lossy(&line);
                    let line = line.trim_end_matches('\r');
                    let status = line.strip_prefix("lab-status ").and_then(|s| s.parse().ok());
                    let line = status.map_or_else(
                        || News::Line(role, line.to_owned()),
                        |status| News::Status(role, status),
                    );
                    if news.send(line).is_err() {
                        return;
                    }
                }
                let _ = news.send(News::Off);
            });
        }
        Ok(Self { qemu })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

fn command(setup: &Setup<'_>) -> Command {
    let Setup { kit, run, role, n_guests, .. } = setup;
    let mut qemu = kit.command(QEMU);
    let share = |qemu: &mut Command, tag: &str, path: &Path, options: &str| {
        let path = path.display();
        qemu.arg("-fsdev").arg(format!(
            "local,id={tag},path={path},security_model=none,multidevs=remap{options}"
        ));
        qemu.arg("-device").arg(format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"));
    };
    // Software emulation: works everywhere, also inside containers and other guests.
    qemu.args(["-accel", "tcg,thread=multi,tb-size=256", "-cpu", PROCESSOR, "-m", MEMORY]);
    // One processor each for two guests; one guest has the second end's too.
    qemu.arg("-smp").arg(if *n_guests == 1 { "2" } else { "1" });
    qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    for firmware in ["qemu", "seabios"] {
        qemu.arg("-L").arg(kit.root().join("usr/share").join(firmware));
    }
    qemu.arg("-kernel").arg(kit.kernel());
    qemu.arg("-initrd").arg(run.join("initrd"));
    // The kernel distrusts an emulated time stamp counter, and would read a device for each look at
    // the clock, which takes as long as a tenth of a message's way.
    qemu.arg("-append").arg(format!(
        "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable lab.role={role} \
         lab.guests={n_guests} lab.mtu={MTU}"
    ));
    qemu.arg("-serial").arg(format!("file:{}", console(run, *role).display()));
    qemu.args(["-chardev", "stdio,id=out,signal=off", "-serial", "chardev:out"]);
    share(&mut qemu, "host", Path::new("/"), ",readonly=on");
    share(&mut qemu, "kit", kit.root(), ",readonly=on");
    share(&mut qemu, "run", run, "");
    if let Some(wire) = &setup.wire {
        use std::os::fd::AsRawFd;
        qemu.arg("-netdev").arg(format!("socket,id=wire,fd={}", wire.as_raw_fd()));
        let mac = format!("52:54:00:00:09:0{}", if *role == 'a' { 1 } else { 2 });
        // With several buffers for one packet (QEMU 7.2) packets came late under load, and once
        // none came any more: the guest's kernel complained of a transmit queue that timed out. Not
        // seen without.
        let device = "virtio-net-pci,netdev=wire,mrg_rxbuf=off,romfile=";
        qemu.arg("-device").arg(format!("{device},mac={mac},host_mtu={MTU}"));
    }
    qemu
}

/// Where a guest's kernel writes.
pub(super) fn console(run: &Path, role: char) -> PathBuf {
    run.join(format!("console.{role}"))
}

/// The end of what a guest's kernel and its emulator said.
pub(super) fn last_words(run: &Path, role: char) -> String {
    let mut words = String::new();
    for file in [console(run, role), run.join(format!("qemu.{role}"))] {
        let text = fs::read(&file).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        for line in &lines[lines.len().saturating_sub(15)..] {
            words.push_str("    ");
            words.push_str(line);
            words.push('\n');
        }
    }
    words
}

const MEMORY: &str = "1536M";

/// PERF: without what takes an emulator more time than a processor. Where the processor is said to
/// copy strings quickly (`erms`, `fsrm`) the kernel copies by an instruction that is emulated byte
/// by byte: netperf TCP_STREAM within a guest has 430 Mbit/s with these and 1,460 without. The
/// others are a fifth level of page tables, and protections that are switched at each copy from or
/// to a program.
const PROCESSOR: &str = "max,erms=off,fsrm=off,la57=off,smap=off,smep=off,pku=off";

/// Bytes: room for a RoCE path MTU of 4096.
const MTU: u32 = 9000;
