//! A virtual NIC in memory that two processes of one host share.

mod attach;
mod doorbell;
mod lane;
mod memory;
mod vnic;

use os::sync;

pub use attach::{
    AttachError, Door, Grant, NAME_BYTES_MAX, SOCKET_VARIABLE, Visitor, Wish, attach, attach_kept,
    default_socket, status,
};
pub use doorbell::Doorbell;
pub use vnic::{End, QUEUES_MAX, Shape, Vnic, make, pair};
