//! Where a rack's records are kept: in a file by default, in etcd, or in memory.

mod etcd;
mod file;
mod format;
mod memory;
mod place;

pub use etcd::EtcdUrl;
pub use file::{FILE_NAME, FileRegistry};
pub use format::{emit, parse};
pub use memory::MemoryRegistry;
pub use place::Place;
