//! An NBD client on a blocking socket: fixed newstyle handshake with `NBD_OPT_GO`, then simple replies. Only what a
//! load generator needs; it shares the protocol's numbers with the server but none of its code.

use super::socket::{self, Client, Inbox, Outbox};
use anyhow::{Context, bail};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use wire::nbd::proto::{
    CHUNK_BYTES, HELLO_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, command,
    handshake_flags, info, option, option_reply, transmission_flags,
};

/// The longest option reply that is read: an information or an error text.
const OPTION_REPLY_BYTES_MAX: u32 = 64 << 10;

/// One connection in the transmission phase.
pub struct Connection {
    reader: BufReader<Inbox>,
    writer: TcpStream,
    out: Vec<u8>,
    /// Payload of large writes, by their number; where in `out` it goes, and how much.
    outbox: Outbox,
    apart: Vec<(usize, usize, usize)>,
    writes: usize,
    /// Bytes of the export.
    pub size_bytes: u64,
    flags: u16,
}

/// A server and an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// `host:port`.
    pub server: String,
    /// Name of the export.
    pub export: String,
}

impl Address {
    /// Reads `nbd://host[:port][/export]`.
    pub fn parse(uri: &str) -> Option<Self> {
        let rest = uri.strip_prefix("nbd://")?;
        let (server, export) = rest.split_once('/').unwrap_or((rest, ""));
        if server.is_empty() {
            return None;
        }
        let has_port = server
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let server = if has_port {
            server.to_owned()
        } else {
            format!("{server}:10809")
        };
        Some(Self {
            server,
            export: export.to_owned(),
        })
    }
}

impl Connection {
    /// Connects and attaches to the export.
    pub fn open(address: &Address, polls: bool) -> anyhow::Result<Self> {
        let server = &address.server;
        let stream = socket::connect(server, "NBD server")?;
        let mut connection = Self {
            reader: BufReader::with_capacity(256 << 10, Inbox::new(stream.try_clone()?, polls)),
            writer: stream,
            out: Vec::with_capacity(256 << 10),
            outbox: Outbox::new(),
            apart: Vec::new(),
            writes: 0,
            size_bytes: 0,
            flags: 0,
        };
        connection
            .handshake(&address.export)
            .with_context(|| format!("{server} does not serve `{}`", address.export))?;
        Ok(connection)
    }

    fn u16(&mut self) -> std::io::Result<u16> {
        let mut bytes = [0; 2];
        self.reader.read_exact(&mut bytes)?;
        Ok(u16::from_be_bytes(bytes))
    }

    fn u32(&mut self) -> std::io::Result<u32> {
        let mut bytes = [0; 4];
        self.reader.read_exact(&mut bytes)?;
        Ok(u32::from_be_bytes(bytes))
    }

    fn u64(&mut self) -> std::io::Result<u64> {
        let mut bytes = [0; 8];
        self.reader.read_exact(&mut bytes)?;
        Ok(u64::from_be_bytes(bytes))
    }

    /// proto.md "Newstyle negotiation", "NBD_OPT_GO".
    fn handshake(&mut self, export: &str) -> anyhow::Result<()> {
        if self.u64()? != HELLO_MAGIC || self.u64()? != OPTION_MAGIC {
            bail!("the server does not speak NBD (newstyle)");
        }
        let offered = self.u16()?;
        if offered & handshake_flags::FIXED_NEWSTYLE == 0 {
            bail!("the server does not offer the fixed newstyle handshake");
        }
        let mut hello = Vec::new();
        hello.extend_from_slice(&u32::from(offered & handshake_flags::ALL).to_be_bytes());
        hello.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        hello.extend_from_slice(&option::GO.to_be_bytes());
        hello.extend_from_slice(&(export.len() as u32 + 6).to_be_bytes());
        hello.extend_from_slice(&(export.len() as u32).to_be_bytes());
        hello.extend_from_slice(export.as_bytes());
        hello.extend_from_slice(&0u16.to_be_bytes());
        self.writer.write_all(&hello)?;
        loop {
            let (magic, asked, kind, length) = (self.u64()?, self.u32()?, self.u32()?, self.u32()?);
            if magic != OPTION_REPLY_MAGIC || asked != option::GO || length > OPTION_REPLY_BYTES_MAX {
                bail!("the server's answer is malformed");
            }
            let mut body = vec![0; length as usize];
            self.reader.read_exact(&mut body)?;
            match kind {
                option_reply::ACK => break,
                option_reply::INFO => self.note_info(&body),
                _ => bail!(
                    "the server refuses: {} (0x{kind:x})",
                    String::from_utf8_lossy(&body)
                ),
            }
        }
        if self.size_bytes == 0 {
            bail!("the export is empty");
        }
        Ok(())
    }

    fn note_info(&mut self, body: &[u8]) {
        if body.len() == 12 && body[..2] == info::EXPORT.to_be_bytes() {
            self.size_bytes = u64::from_be_bytes(body[2..10].try_into().expect("eight bytes"));
            self.flags = u16::from_be_bytes([body[10], body[11]]);
        }
    }

    /// Queues a write with a copy of its data.
    pub fn queue_write(&mut self, cookie: u64, offset: u64, data: &[u8]) {
        self.push(command::WRITE, cookie, offset, data.len() as u32);
        self.out.extend_from_slice(data);
    }

    /// The requests queued so far as bytes, instead of sending them.
    pub fn take_queued(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Another handle of the socket; dropping the connection itself ends it politely, so it is not.
    pub fn into_stream(self) -> std::io::Result<TcpStream> {
        let stream = self.writer.try_clone();
        std::mem::forget(self);
        stream
    }

    /// True if the server refuses writes.
    pub fn is_read_only(&self) -> bool {
        self.flags & transmission_flags::READ_ONLY != 0
    }

    fn push(&mut self, kind: u16, cookie: u64, offset: u64, length: u32) {
        self.out.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
        self.out.extend_from_slice(&0u16.to_be_bytes());
        self.out.extend_from_slice(&kind.to_be_bytes());
        self.out.extend_from_slice(&cookie.to_be_bytes());
        self.out.extend_from_slice(&offset.to_be_bytes());
        self.out.extend_from_slice(&length.to_be_bytes());
    }
}

impl Client for Connection {
    fn can_flush(&self) -> bool {
        self.flags & transmission_flags::SEND_FLUSH != 0
    }

    fn push_read(&mut self, cookie: u64, offset: u64, length: u32) {
        self.push(command::READ, cookie, offset, length);
    }

    fn push_write(&mut self, cookie: u64, offset: u64, data: &[u8]) {
        if data.len() < socket::APART_BYTES_MIN {
            return self.queue_write(cookie, offset, data);
        }
        self.push(command::WRITE, cookie, offset, data.len() as u32);
        self.writes += 1;
        self.apart.push((self.out.len(), self.writes, data.len()));
        self.outbox.put(self.writes, data);
    }

    fn push_flush(&mut self, cookie: u64) {
        self.push(command::FLUSH, cookie, 0, 0);
    }

    /// With one write if the socket takes it and there is no large payload.
    fn send(&mut self) -> std::io::Result<()> {
        let mut from = 0;
        for (at, number, length) in self.apart.drain(..) {
            let mut sent = 0;
            while sent < length {
                let head = &self.out[from..at];
                let count = self
                    .outbox
                    .send(&self.writer, head, number, sent, length - sent)?;
                let of_head = count.min(head.len());
                from += of_head;
                sent += count - of_head;
            }
        }
        self.writer.write_all(&self.out[from..])?;
        self.out.clear();
        Ok(())
    }

    fn receive(&mut self, data_bytes: &dyn Fn(u64) -> usize) -> anyhow::Result<u64> {
        let (magic, error, cookie) = (self.u32()?, self.u32()?, self.u64()?);
        if magic != SIMPLE_REPLY_MAGIC {
            bail!("the server's reply is malformed");
        }
        if error != 0 {
            bail!(
                "the server answered with error {error} ({})",
                std::io::Error::from_raw_os_error(error as i32)
            );
        }
        let mut left = data_bytes(cookie);
        while left > 0 {
            let count = self.reader.fill_buf()?.len().min(left);
            if count == 0 {
                bail!("the server closed the connection");
            }
            self.reader.consume(count);
            left -= count;
        }
        Ok(cookie)
    }

    /// A whole header is here.
    fn has_reply(&self) -> bool {
        self.reader.buffer().len() >= CHUNK_BYTES
    }

    fn socket(&self) -> &TcpStream {
        &self.writer
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.out.clear();
        self.push(command::DISC, 0, 0, 0);
        let _ = self.send();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_default_port_and_name() {
        let address = |server: &str, export: &str| {
            Some(Address {
                server: server.into(),
                export: export.into(),
            })
        };
        assert_eq!(Address::parse("nbd://h:1/x"), address("h:1", "x"));
        assert_eq!(Address::parse("nbd://h"), address("h:10809", ""));
        assert_eq!(Address::parse("nbd://[::1]/x"), address("[::1]:10809", "x"));
        assert_eq!(Address::parse("nbd:///x"), None);
        assert_eq!(Address::parse("http://h"), None);
    }
}
