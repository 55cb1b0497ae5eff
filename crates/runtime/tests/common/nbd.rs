//! A small NBD client on blocking sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// A client that does exactly what it is told.
pub struct Client(pub TcpStream);

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const WRITE_ZEROES: u16 = 6;

impl Client {
    /// Connects and chooses the export "data" (proto.md "NBD_OPT_EXPORT_NAME").
    pub fn new(address: SocketAddr) -> Self {
        Self::of(address, "data")
    }

    /// The same for another export.
    pub fn of(address: SocketAddr, name: &str) -> Self {
        let mut client = Self(TcpStream::connect(address).expect("the server listens"));
        client
            .0
            .set_read_timeout(Some(std::time::Duration::from_secs(10)))
            .expect("a plain socket");
        assert_eq!(&client.take::<18>()[..8], b"NBDMAGIC");
        client.give(&3u32.to_be_bytes());
        client.give(b"IHAVEOPT\0\0\0\x01");
        client.give(&(name.len() as u32).to_be_bytes());
        client.give(name.as_bytes());
        // The size and the flags.
        client.take::<10>();
        client
    }

    pub fn give(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("the server reads");
    }

    pub fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).expect("the server answers");
        bytes
    }

    pub fn request(&mut self, command: u16, cookie: u64, offset: u64, length: u32) {
        self.give(&header(command, cookie, offset, length));
    }

    /// The error and cookie of a simple reply.
    pub fn reply(&mut self) -> (u32, u64) {
        parse(&self.take())
    }
}

/// A request's header.
pub fn header(command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend([0, 0]);
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

/// The error and cookie of a simple reply.
pub fn parse(bytes: &[u8; 16]) -> (u32, u64) {
    assert_eq!(bytes[..4], 0x6744_6698u32.to_be_bytes());
    let error = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    let cookie = bytes[8..].first_chunk().expect("8 bytes");
    (error, u64::from_be_bytes(*cookie))
}
