//! What a guest is made of: QEMU, a kernel with its modules, and the programs that a guest has
//! beside the host's. All of it is unpacked below `target/lab/kit`, once.
//!
//! ```text
//! target/lab/kit/root    the packages' files: programs that run here, and a guest's upper files
//! target/lab/kit/stamp   what was fetched: while it fits, nothing is asked of the network
//! ```

use super::cpio::Archive;
use crate::apt::{self, Apt};
use crate::steps::{self, Done, Failure};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Everything a guest is started with.
#[derive(Debug)]
pub(super) struct Kit {
    root: PathBuf,
    /// The kernel's release, which names its files.
    release: String,
}

impl Kit {
    /// Fetches what is not there yet.
    ///
    /// # Errors
    /// Names what is missing where apt or the network is.
    pub(super) fn fetch() -> Done<Self> {
        let dir = steps::target_dir().join("lab/kit");
        let stamp = stamp();
        if !fs::read_to_string(dir.join("stamp")).is_ok_and(|found| found == stamp) {
            let fresh = dir.with_extension("new");
            steps::remove(&fresh)?;
            unpack(&fresh).map_err(|why| {
                Failure::new(format!("cannot fetch what a guest is made of: {why}"))
            })?;
            fs::write(fresh.join("stamp"), stamp).map_err(|e| Failure::io(fresh.display(), &e))?;
            steps::remove(&dir)?;
            fs::rename(&fresh, &dir).map_err(|e| Failure::io(dir.display(), &e))?;
        }
        let root = dir.join("root");
        let modules = root.join("usr/lib/modules");
        let releases = fs::read_dir(&modules).map_err(|e| Failure::io(modules.display(), &e))?;
        let release = releases.flatten().next();
        let release = release.ok_or_else(|| Failure::new("no package brought a kernel"))?;
        let release = release.file_name().to_string_lossy().into_owned();
        Ok(Self { root, release })
    }

    /// The programs' files.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The kernel's image.
    pub(super) fn kernel(&self) -> PathBuf {
        self.root.join("boot").join(format!("vmlinuz-{}", self.release))
    }

    /// One of the kit's programs, with the kit's libraries.
    pub(super) fn command(&self, program: &str) -> Command {
        command(&self.root, program)
    }

    /// A guest's first file system: busybox, `lab/init`, and the modules in the order of loading.
    pub(super) fn initrd(&self) -> Done<Vec<u8>> {
        let mut archive = Archive::default();
        for dir in ["bin", "modules"] {
            archive.dir(dir);
        }
        let read = |path: &Path| fs::read(path).map_err(|e| Failure::io(path.display(), &e));
        archive.file("bin/busybox", 0o755, &read(&self.root.join("usr/bin/busybox"))?);
        archive.file("init", 0o755, &read(&steps::root().join("lab/init"))?);
        let mut order = String::new();
        for module in self.modules()? {
            let name = module.file_name().unwrap_or_default().to_string_lossy();
            archive.file(&format!("modules/{name}"), 0o644, &read(&module)?);
            order.push_str(&name);
            order.push('\n');
        }
        archive.file("modules/order", 0o644, order.as_bytes());
        Ok(archive.finish())
    }

    /// The files of [`MODULES`] and of what they need, each after what it needs itself.
    fn modules(&self) -> Done<Vec<PathBuf>> {
        let mut found: Vec<PathBuf> = Vec::new();
        for module in MODULES {
            let mut query = kmod(&self.root, "modprobe");
            query.args(["--set-version", &self.release, "--dirname"]).arg(&self.root);
            let plan = steps::quiet(query.args(["--show-depends", module]))?;
            // `insmod PATH OPTIONS`, or `builtin NAME`, which needs nothing.
            let paths = plan.lines().filter_map(|line| line.strip_prefix("insmod "));
            for path in paths.filter_map(|rest| rest.split_whitespace().next()) {
                let path = PathBuf::from(path);
                if !found.contains(&path) {
                    found.push(path);
                }
            }
        }
        Ok(found)
    }
}

fn unpack(dir: &Path) -> Done {
    let root = dir.join("root");
    // One tree, as on the host, so that a guest can lay it over the host's.
    for place in ["bin", "sbin", "lib", "lib64"] {
        let real = root.join("usr").join(place);
        fs::create_dir_all(&real).map_err(|e| Failure::io(real.display(), &e))?;
        let link = root.join(place);
        symlink(Path::new("usr").join(place), &link)
            .map_err(|e| Failure::io(link.display(), &e))?;
    }
    for archive in Apt::new(&dir.join("apt"))?.fetch(PACKAGES)? {
        apt::unpack_merged(&archive, &root)?;
    }
    steps::remove(&dir.join("apt"))?;
    let modules = root.join("usr/lib/modules");
    for entry in fs::read_dir(&modules).map_err(|e| Failure::io(modules.display(), &e))?.flatten() {
        let mut depmod = kmod(&root, "depmod");
        steps::quiet(depmod.arg("--basedir").arg(&root).arg(entry.file_name()))?;
    }
    steps::quiet(command(&root, QEMU).arg("--version")).map(drop)
}

/// kmod is one program with several names; its links are absolute and lead out of the kit.
fn kmod(root: &Path, name: &str) -> Command {
    let mut kmod = command(root, "kmod");
    kmod.arg0(name);
    kmod
}

fn command(root: &Path, program: &str) -> Command {
    let mut command = Command::new(root.join("usr/bin").join(program));
    let lib = root.join("usr/lib");
    let mut path = vec![lib.clone()];
    for entry in fs::read_dir(&lib).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().ends_with("-linux-gnu") {
            path.push(entry.path());
        }
    }
    let path: Vec<&OsStr> = path.iter().map(|dir| dir.as_os_str()).collect();
    command.env("LD_LIBRARY_PATH", path.join(OsStr::new(":")));
    command
}

fn stamp() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let release = release.lines().find(|line| line.starts_with("VERSION_CODENAME="));
    format!("layout 1\n{}\n{}\n", release.unwrap_or("VERSION_CODENAME="), PACKAGES.join(" "))
}

/// The emulator.
pub(super) const QEMU: &str = "qemu-system-x86_64";

const PACKAGES: &[&str] = &[
    "qemu-system-x86",
    "linux-image-amd64",
    "busybox-static",
    "kmod",
    // In the guest: devices, addresses, the driver of soft RoCE, the C peers.
    "iproute2",
    "libibverbs1",
    "ibverbs-providers",
    "librdmacm1",
    "rdmacm-utils",
    "perftest",
];

/// A guest's disks and wires, RDMA over them (with the checksums that the kernel asks its crypto
/// layer for by name), delay on a wire, packets dropped by what they are, a second network device
/// on the same wire, and TLS in the kernel.
const MODULES: &[&str] = &[
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "virtio_net",
    "dummy",
    "crc32_generic",
    "crc32c_generic",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "sch_netem",
    "sch_ingress",
    "cls_u32",
    "act_gact",
    "macvlan",
    "tls",
    "gcm",
    "ghash_generic",
    "ctr",
];
