//! The file by which programs under the preload library trust this host's address on its RDMA
//! device.

use rsock_cli::error::Error;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Such a file; it is removed with this value.
#[derive(Debug)]
pub(super) struct TrustFile(PathBuf);

impl TrustFile {
    /// Writes a file that trusts `address` alone.
    pub(super) fn write(address: IpAddr) -> Result<Self, Error> {
        let path = std::env::temp_dir().join(format!("rsock-compare-{}.toml", std::process::id()));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(Error::io("cannot make a file of trusted hosts"))?;
        let written = file.write_all(trusting(address).as_bytes());
        let this = Self(path);
        written.map_err(Error::io("cannot write a file of trusted hosts"))?;
        Ok(this)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TrustFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn trusting(address: IpAddr) -> String {
    let bits = if address.is_ipv4() { 32 } else { 128 };
    format!("trust_fabric = [\"{address}/{bits}\"]\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_is_trusted_and_the_file_goes_with_its_value() {
        let file = TrustFile::write("fd09::1".parse().unwrap()).unwrap();
        let path = file.path().to_owned();
        assert_eq!(fs::read_to_string(&path).unwrap(), "trust_fabric = [\"fd09::1/128\"]\n");
        drop(file);
        assert!(!path.exists());
        assert_eq!(trusting("10.9.0.1".parse().unwrap()), "trust_fabric = [\"10.9.0.1/32\"]\n");
    }
}
