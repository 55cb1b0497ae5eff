//! Where a rack's records are kept: in a file by default, or in memory.

mod file;
mod format;
mod memory;

pub use file::{FILE_NAME, FileRegistry};
pub use format::parse;
pub use memory::MemoryRegistry;
