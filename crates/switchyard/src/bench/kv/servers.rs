//! The servers of `bench kv`: ours and Redis, each in a directory of its own below the same one.

use super::args::{KvArgs, Side};
use crate::machine;
use anyhow::{Context, bail, ensure};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to answer at first: ours makes its areas.
const START_TIME: Duration = Duration::from_secs(60);

/// A running server.
pub struct Server {
    process: Child,
    dir: PathBuf,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Server {
    /// Starts one of a side.
    pub fn start(args: &KvArgs, side: Side) -> anyhow::Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], args.port));
        let name = format!("switchyard-bench-{}-kv", std::process::id());
        let dir = args.dir.join(name);
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let mut command = match side {
            Side::Ours | Side::OursMemory => ours(args, side, &address, &dir)?,
            Side::Redis | Side::RedisMemory => redis(args, side, &dir),
        };
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("{} does not start", side.name()));
        let process = match process {
            Ok(process) => process,
            Err(error) => {
                let _ = fs::remove_dir_all(&dir);
                return Err(error);
            }
        };
        let mut server = Self {
            process,
            dir,
            address,
        };
        server.await_answer()?;
        Ok(server)
    }

    fn await_answer(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        while start.elapsed() < START_TIME {
            if let Some(status) = self.process.try_wait()? {
                bail!("the server ended: {status}");
            }
            if let Ok(mut socket) = TcpStream::connect(self.address) {
                socket.write_all(b"PING\r\n")?;
                let mut answer = [0; 7];
                if socket.read_exact(&mut answer).is_ok() && &answer == b"+PONG\r\n" {
                    return Ok(());
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("the server does not answer");
    }

    /// Processor time that it has taken.
    pub fn cpu_time(&self) -> anyhow::Result<Duration> {
        machine::cpu_time(self.process.id()).context("the server is gone")
    }

    /// Ends it.
    pub fn stop(mut self) -> anyhow::Result<()> {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let status = self.process.wait()?;
        ensure!(status.success(), "the server ended: {status}");
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // After a stop there is none.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn ours(args: &KvArgs, side: Side, address: &SocketAddr, dir: &std::path::Path) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    let shards = args.shards.to_string();
    command.args([
        "kv",
        "serve",
        "--listen",
        &address.to_string(),
        "--shards",
        &shards,
    ]);
    if side == Side::Ours {
        command
            .args(["--durability", "always", "--dir"])
            .arg(dir.join("areas"));
    }
    Ok(command)
}

fn redis(args: &KvArgs, side: Side, dir: &std::path::Path) -> Command {
    let mut command = Command::new("redis-server");
    let port = args.port.to_string();
    command.args([
        "--port",
        &port,
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--daemonize",
        "no",
    ]);
    match side {
        Side::RedisMemory => command.args(["--appendonly", "no"]),
        _ => command.args(["--appendonly", "yes", "--appendfsync", "always"]),
    };
    command.args([
        "--auto-aof-rewrite-percentage",
        "0",
        "--loglevel",
        "warning",
        "--dir",
    ]);
    command.arg(dir);
    command
}
