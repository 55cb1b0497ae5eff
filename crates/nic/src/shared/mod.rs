//! A virtual NIC in memory that two processes of one host share.

mod attach;
mod doorbell;
mod kept;
mod lane;
mod letter;
mod memory;
mod port;
mod sleep;
mod vnic;

use os::sync;

pub use attach::{
    AttachError, Door, Grant, NAME_BYTES_MAX, SOCKET_VARIABLE, Visitor, Wish, attach, default_socket, join,
    join_kept, status,
};
pub use doorbell::Doorbell;
pub use kept::{Keep, Kept};
pub use letter::News;
pub use port::{LINKS_MAX, Port};
pub(crate) use vnic::parts;
pub use vnic::{End, QUEUES_MAX, Shape, Side, Vnic, make, pair};
