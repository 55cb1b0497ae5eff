//! The other end of a test's stream.

use base::Duration;
use sockets::{Handle, Sockets};

/// Longer than anything takes.
const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

/// Sends everything back until the end.
pub fn echo(sockets: &mut Sockets, stream: Handle) {
    let mut bytes = vec![0; 100_000];
    loop {
        match sockets
            .wait_receive(stream, &mut bytes, LIMIT)
            .expect("the peer is there")
        {
            0 => break,
            count => sockets
                .wait_send(stream, &bytes[..count], LIMIT)
                .expect("the peer reads"),
        }
    }
    sockets.close(stream).expect("it is a socket");
    sockets.finish(LIMIT).expect("everything ends");
}
