//! The fuzzer's function: decodes a table as another process may show it.

use crate::metrics::{MAGIC, N_SLOTS, SLOT_LEN_WORD, SLOTS_AT, TABLE_LEN, VERSION, reader};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Decodes a table with `data` in it: the first byte selects how much of a valid header it has, the
/// next two the offset of the rest.
///
/// # Panics
/// If more sockets are found in it than it has slots.
pub fn stat_table(data: &[u8]) {
    let Some((&[mode, low, high], rest)) = data.split_first_chunk::<3>() else { return };
    let Ok(file) = memfd_create("table", MemfdFlags::CLOEXEC).map(File::from) else { return };
    let len = if mode & 1 == 0 { TABLE_LEN as u64 } else { rest.len() as u64 };
    let mut header = [0; 24];
    header[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    header[8..12].copy_from_slice(&VERSION.to_ne_bytes());
    header[20..24].copy_from_slice(&SLOT_LEN_WORD.to_ne_bytes());
    let is_headed = mode & 2 == 0;
    let at = if is_headed { SLOTS_AT as u64 } else { 0 };
    let at = at + u64::from(u16::from_le_bytes([low, high]));
    let written = file.set_len(len).is_ok()
        && (!is_headed || file.write_all_at(&header, 0).is_ok())
        && file.write_all_at(rest, at).is_ok();
    if !written {
        return;
    }
    if let Ok(Some(table)) = reader::read_table(&file) {
        assert!(table.connections.len() + table.datagrams.len() <= N_SLOTS as usize);
        for line in &table.connections {
            // `rsock stat` prints it.
            assert!(!format!("{line:?}").is_empty());
        }
        assert!(!format!("{:?}", table.datagrams).is_empty());
    }
}
