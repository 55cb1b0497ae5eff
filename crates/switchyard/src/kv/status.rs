//! `switchyard kv status`: what INFO of a server tells.

use crate::failure::Failure;
use anyhow::{Context, ensure};
use clap::Args;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a server may take.
const LIMIT: Duration = Duration::from_secs(5);
/// Bytes of INFO at most; a server that says more is none of ours.
const INFO_BYTES_MAX: usize = 1 << 20;

/// `switchyard kv status`.
#[derive(Args)]
pub struct StatusArgs {
    /// Address of the server
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:6379")]
    connect: SocketAddr,
}

/// Runs it.
pub fn run(args: &StatusArgs, json: bool) -> anyhow::Result<()> {
    let silent = |error: std::io::Error| {
        let text = format!(
            "no server answers at {}: {error}. Start one with `switchyard kv serve`",
            args.connect
        );
        anyhow::Error::from(Failure::Silent(text))
    };
    let socket = TcpStream::connect_timeout(&args.connect, LIMIT).map_err(silent)?;
    socket.set_read_timeout(Some(LIMIT))?;
    (&socket).write_all(b"INFO\r\n").map_err(silent)?;
    let mut answer = BufReader::new(&socket);
    let mut head = String::new();
    answer.by_ref().take(64).read_line(&mut head).map_err(silent)?;
    let length = head
        .trim_end()
        .strip_prefix('$')
        .and_then(|digits| digits.parse::<usize>().ok());
    let length = length.with_context(|| format!("{} answers INFO with {head:?}", args.connect))?;
    ensure!(
        length <= INFO_BYTES_MAX,
        "{} answers INFO with {length} bytes",
        args.connect
    );
    let mut text = vec![0; length];
    answer.read_exact(&mut text).map_err(silent)?;
    let text = String::from_utf8_lossy(&text).replace("\r\n", "\n");
    if json {
        println!("{}", serde_json::to_string_pretty(&as_json(&text))?);
    } else {
        print!("{text}");
    }
    Ok(())
}

/// Each line's name and value; numbers are numbers.
fn as_json(text: &str) -> serde_json::Map<String, serde_json::Value> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .map(|(name, value)| {
            let value = match value.parse::<u64>() {
                Ok(number) => number.into(),
                Err(_) => value.into(),
            };
            (name.to_owned(), value)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_info_are_numbers_in_json() {
        let json = as_json("# Server\nshards:2\nredis_mode:standalone\n\n# Keyspace\ndb0:keys=1,expires=0\n");
        assert_eq!(json["shards"], 2);
        assert_eq!(json["redis_mode"], "standalone");
        assert_eq!(json["db0"], "keys=1,expires=0");
        assert_eq!(json.len(), 3);
    }
}
